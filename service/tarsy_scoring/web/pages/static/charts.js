// Shows the values of the nearest day or row of a chart: beside the pointer, and with a slider below the chart for the
// keyboard and for screen readers. Without this script each of these places has its values as a tooltip.

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
    this.slider = element("input", { type: "range", min: "0", max: String(stops.length - 1), value: String(stops.length - 1) });
    this.place();
    this.listen();
  }

  place() {
    const frame = element("div", { className: "chart-frame" });
    this.chart.replaceWith(frame);
    frame.append(this.chart, this.tip);
    const label = element("label", { className: "reader", textContent: `${this.chart.dataset.stops} ` });
    label.append(this.slider);
    (frame.closest(".scroll") ?? frame).after(label);
    this.describe(this.stops.length - 1);
  }

  listen() {
    for (const kind of ["pointermove", "pointerdown"]) {
      this.chart.addEventListener(kind, (event) => {
        const at = this.stops.indexOf(event.target);
        if (at >= 0) this.show(at);
      });
    }
    this.chart.addEventListener("pointerleave", () => this.hide());
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    this.slider.addEventListener("focus", () => this.show(Number(this.slider.value)));
    this.slider.addEventListener("blur", () => this.hide());
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  describe(at) {
    this.slider.value = String(at);
    this.slider.ariaValueText = this.texts[at].replaceAll("\n", "; ");
  }

  show(at) {
    this.describe(at);
    const stop = this.stops[at];
    this.stops.forEach((one) => one.classList.toggle("on", one === stop && !one.dataset.at));
    if (this.rule && stop.dataset.at) {
      for (const end of ["x1", "x2"]) this.rule.setAttribute(end, stop.dataset.at);
      this.rule.classList.add("on");
    }
    this.tip.textContent = this.texts[at];
    this.tip.hidden = false;
    this.moveTip(stop);
    if (document.activeElement === this.slider) this.tip.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // The values stand on the side of the rule that has more room; those of a row stand below or above it.
  moveTip(stop) {
    const [whole, box] = [this.chart.getBoundingClientRect(), stop.getBoundingClientRect()];
    const width = this.tip.offsetWidth;
    if (stop.dataset.at) {
      const x = (Number(stop.dataset.at) / this.chart.viewBox.baseVal.width) * whole.width;
      this.tip.style.left = `${x < whole.width / 2 ? x + GAP : x - GAP - width}px`;
      this.tip.style.top = `${whole.height * 0.12}px`;
    } else {
      const below = box.bottom - whole.top;
      const fits = below + this.tip.offsetHeight <= whole.height;
      this.tip.style.left = `${whole.width / 3}px`;
      this.tip.style.top = `${fits ? below : box.top - whole.top - this.tip.offsetHeight}px`;
    }
  }

  hide() {
    this.tip.hidden = true;
    this.rule?.classList.remove("on");
    this.stops.forEach((one) => one.classList.remove("on"));
  }
}

for (const chart of document.querySelectorAll("svg.chart[data-stops]")) {
  const stops = [...chart.querySelectorAll(".stop")];
  if (stops.length) new Reader(chart, stops);
}
