// Shows the values of the nearest day or row of a chart beside the pointer. A chart whose values stand nowhere in words
// gets a slider below it, for the keyboard and for screen readers. Without this script the values are tooltips.

const GAP = 12; // pixels between a place and its values

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

class Reader {
  constructor(chart, stops) {
    this.chart = chart;
    this.stops = stops;
    this.texts = stops.map((stop) => {
      const title = stop.querySelector("title");
      title.remove(); // the browser would show it a second time
      return title.textContent;
    });
    this.rule = chart.querySelector(".rule");
    this.tip = element("div", { className: "tip", hidden: true, ariaHidden: "true" });
    const frame = element("div", { className: chart.matches(".narrow") ? "chart-frame narrow" : "chart-frame" });
    chart.replaceWith(frame);
    frame.append(chart, this.tip);
    this.scroll = frame.closest(".scroll") ?? frame;
    if (chart.dataset.slider) this.addSlider(chart.dataset.slider);
    for (const kind of ["pointermove", "pointerdown"]) {
      chart.addEventListener(kind, (event) => {
        const at = stops.indexOf(event.target);
        if (at >= 0) this.show(at);
      });
    }
    chart.addEventListener("pointerleave", () => this.hide());
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  addSlider(name) {
    const last = String(this.stops.length - 1);
    this.slider = element("input", { type: "range", min: "0", max: last, value: last });
    const label = element("label", { className: "reader", textContent: name });
    label.append(this.slider);
    this.scroll.after(label);
    this.describe(this.stops.length - 1);
    for (const kind of ["input", "focus"]) this.slider.addEventListener(kind, () => this.show(Number(this.slider.value)));
    this.slider.addEventListener("blur", () => this.hide());
  }

  describe(at) {
    this.slider.value = String(at);
    this.slider.ariaValueText = this.texts[at].replaceAll("\n", "; ");
  }

  show(at) {
    const stop = this.stops[at];
    this.stops.forEach((one) => one.classList.toggle("on", one === stop && !this.rule));
    if (this.rule) {
      for (const end of ["x1", "x2"]) this.rule.setAttribute(end, stop.dataset.at);
      this.rule.classList.add("on");
    }
    this.tip.textContent = this.texts[at];
    this.tip.hidden = false;
    const box = stop.getBoundingClientRect();
    if (this.slider) this.describe(at);
    if (document.activeElement === this.slider) this.scrollTo(box);
    this.moveTip(stop.getBoundingClientRect());
  }

  scrollTo(box) {
    const seen = this.scroll.getBoundingClientRect();
    if (box.left < seen.left || box.right > seen.right) this.scroll.scrollLeft += box.left - seen.left - seen.width / 2;
  }

  // Beside a day, on the side with more room; below a row, or above the last one. Always in the part that is seen.
  moveTip(box) {
    const [whole, seen] = [this.chart.getBoundingClientRect(), this.scroll.getBoundingClientRect()];
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const middle = (box.left + box.right) / 2;
    const right = middle < (seen.left + seen.right) / 2;
    let left = this.rule ? (right ? middle + GAP : middle - GAP - width) : seen.left + seen.width / 3;
    left = Math.max(seen.left, Math.min(left, seen.right - width));
    const below = box.bottom - whole.top;
    const row = below + height <= whole.height ? below : box.top - whole.top - height;
    this.tip.style.left = `${left - whole.left}px`;
    this.tip.style.top = `${this.rule ? whole.height / 8 : row}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.rule?.classList.remove("on");
    this.stops.forEach((one) => one.classList.remove("on"));
  }
}

for (const chart of document.querySelectorAll("svg.chart")) {
  const stops = [...chart.querySelectorAll(".stop")];
  if (stops.length) new Reader(chart, stops);
}
