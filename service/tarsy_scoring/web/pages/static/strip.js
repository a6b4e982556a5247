// Fills the strip of rolling signals: a row per chain with its newest hour and day, and the newest drift finding.
// live.js passes the messages on. Their texts are untrusted: they are set as text, and numbers are checked.

const strip = document.getElementById("strip");
const rows = document.getElementById("strip-rows");
const drift = document.getElementById("strip-drift");
const driftText = document.getElementById("strip-finding");
const said = document.getElementById("strip-said");
const counted = document.getElementById("strip-count");
const only = strip.dataset.chain || null; // chain of the form; null: all
const LENGTHS = [["1h", "1 hour"], ["24h", "24 hours"]];
const CAUSES = { judge: "the judge changed", agents: "the agents changed", both: "judge and agents changed" };
const LONGEST = 80; // characters of a name
const SHOW_MS = 200, SAY_MS = 10000, LOOK_MS = 60000;
const GONE_MS = 24 * 3600 * 1000; // chains whose newest day ended earlier are removed

const chains = new Map(); // chain id, null for none -> its newest message
const lines = new Map(); // chain id -> its row and its last band
const openedAt = Date.now();
let finding = null; // newest drift message
let showing = 0, saying = 0, saidAt = -SAY_MS;
let news = new Map(); // subject -> sentence that was not announced yet

// --- values as text ----------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const oneDecimal = (value) => String(Math.round(value * 10) / 10);
const count = (value) => (isNumber(value) ? value.toLocaleString("en-US") : "–");
const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many}`;

// Removes invisible characters and marks that change the direction of the following text.
function legible(text) {
  const seen = [...String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]/gu, "").trim()];
  return seen.length > LONGEST ? `${seen.slice(0, LONGEST).join("")}…` : seen.join("");
}

const nameOf = (chain) => (chain === null ? "no chain" : legible(chain) || "(invisible name)");

function when(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return "";
  const [day, time] = at.toISOString().split("T");
  const today = new Date().toISOString().startsWith(day);
  return `${today ? "" : `${day} `}${time.slice(0, 5)} UTC`;
}

function usd(amount) {
  if (!isNumber(amount)) return "";
  return amount > 0 && amount < 0.01 ? "less than $0.01" : `$${amount.toFixed(2)}`;
}

function bandOf(mean) {
  return mean >= 75 ? "75-100" : mean >= 50 ? "50-74" : "0-49";
}

function failuresIn(window) {
  const kinds = window.failures && typeof window.failures === "object" ? Object.entries(window.failures) : [];
  const counted = kinds.filter(([, number]) => isNumber(number) && number > 0).sort((a, b) => b[1] - a[1]);
  if (!counted.length) return "";
  const most = legible(counted[0][0]).replaceAll("_", " ");
  const sum = counted.reduce((whole, [, number]) => whole + number, 0);
  return `${plural(sum, "failure", "failures")} (${counted.length > 1 ? "most: " : ""}${most})`;
}

function figuresOf(window) {
  const share = window.share_under_threshold;
  const under = isNumber(share) && isNumber(window.threshold) ? `${Math.round(100 * share)} % under ${window.threshold}` : "";
  const chats = isNumber(window.nothing_to_judge) && window.nothing_to_judge > 0 ? `${count(window.nothing_to_judge)} with nothing to judge` : "";
  return [plural(window.scores, "score", "scores"), under, failuresIn(window), chats, usd(window.cost_usd)].filter(Boolean).join(" · ");
}

// --- rows --------------------------------------------------------------------------------------------

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function badgeFor(mean) {
  const model = document.getElementById("badges").content.querySelector(`[data-state="${bandOf(mean)}"]`);
  const badge = element("span", { className: model.className }, ...[...model.cloneNode(true).childNodes]);
  badge.querySelector("b").textContent = oneDecimal(mean);
  return badge;
}

function cellFor(window, title) {
  const cell = element("td", {});
  cell.dataset.name = title;
  if (!window || typeof window !== "object") {
    cell.append("–");
    return cell;
  }
  const until = when(window.end);
  cell.append(
    isNumber(window.mean) ? badgeFor(window.mean) : element("span", { className: "small quiet", textContent: "no total" }),
    element("span", { className: "small", textContent: ` ${figuresOf(window)}` }),
    element("span", { className: "small quiet until", textContent: until && ` until ${until}` }),
  );
  return cell;
}

function rowFor(chain, windows) {
  const name = element("th", { scope: "row" });
  if (chain === null) name.append(element("span", { className: "quiet", textContent: nameOf(chain) }));
  else name.append(element("a", { href: `/?${new URLSearchParams({ chain })}`, textContent: nameOf(chain) }));
  return element("tr", {}, name, ...LENGTHS.map(([length, title]) => cellFor(windows[length], title)));
}

// An unchanged row stays in place, so that reading or clicking in it is not interrupted.
function put(chain, message) {
  const row = rowFor(chain, message.windows);
  const line = lines.get(chain);
  if (line && line.row.textContent === row.textContent) return;
  const hadFocus = line && line.row.contains(document.activeElement);
  if (line) line.row.replaceWith(row);
  if (hadFocus) row.querySelector("a")?.focus({ preventScroll: true });
  const mean = message.windows["1h"]?.mean;
  const band = isNumber(mean) ? bandOf(mean) : line?.band;
  if (line && line.band && band !== line.band) news.set(chain, `${nameOf(chain)} is in ${band} now: ${oneDecimal(mean)} in its newest hour.`);
  lines.set(chain, { row, band });
}

function isGone(message) {
  const end = new Date(message.windows["24h"]?.end).getTime();
  return Number.isFinite(end) && Date.now() - end > GONE_MS;
}

// Most scores of the newest day first, then by name.
function inOrder(one, other) {
  const [ones, others] = [one, other].map((chain) => scoresOf(chains.get(chain)));
  if (ones !== others) return others - ones;
  if (one === null || other === null) return one === null ? 1 : -1;
  return one < other ? -1 : 1;
}

function scoresOf(message) {
  const scores = message.windows["24h"]?.scores;
  return isNumber(scores) ? scores : 0;
}

function show() {
  showing = 0;
  for (const [chain, message] of chains) {
    if (!isGone(message)) {
      put(chain, message);
      continue;
    }
    chains.delete(chain);
    lines.get(chain)?.row.remove();
    lines.delete(chain);
  }
  const wanted = [...lines.keys()].sort(inOrder).map((chain) => lines.get(chain).row);
  const focused = document.activeElement;
  wanted.forEach((row, place) => rows.children[place] !== row && rows.insertBefore(row, rows.children[place] ?? null));
  if (rows.contains(focused)) focused.focus({ preventScroll: true }); // a moved row loses the focus
  const total = lines.size ? plural(lines.size, "chain", "chains") : ""; // a drift finding alone shows no chain
  if (counted.textContent !== total) counted.textContent = total;
  showDrift();
  strip.querySelector(".scroll").hidden = !lines.size;
  strip.hidden = !lines.size && !finding;
  speak();
}

// --- drift -------------------------------------------------------------------------------------------

function showDrift() {
  drift.hidden = !finding;
  const text = finding ? driftInWords(finding) : "";
  if (driftText.textContent === text) return;
  driftText.textContent = text;
  if (finding.timestamp_us / 1000 > openedAt) news.set(drift, text); // announce only findings since the page was opened
}

function driftInWords(event) {
  const cause = Object.hasOwn(CAUSES, event.cause) ? CAUSES[event.cause] : "totals changed";
  const [low, high] = Array.isArray(event.interval) ? event.interval : [];
  const interval = isNumber(low) && isNumber(high) ? ` (${signed(low)} to ${signed(high)})` : "";
  const began = event.began_at ? when(event.began_at) : "";
  const facts = [
    isNumber(event.size_points) ? `${signed(event.size_points)} points${interval}` : "",
    typeof event.chain_id === "string" ? `chain ${nameOf(event.chain_id)}` : "",
    began && `since ${began}`,
  ];
  const clear = event.is_clear === false ? " This is not certain yet." : "";
  return `Drift: ${[cause, ...facts].filter(Boolean).join(", ")}.${clear}`;
}

function signed(points) {
  return `${points > 0 ? "+" : points < 0 ? "−" : ""}${oneDecimal(Math.abs(points))}`;
}

// --- announcing --------------------------------------------------------------------------------------

// Screen readers hear changes of band and new drift, collected over ten seconds.
function speak() {
  if (!news.size || saying) return;
  saying = setTimeout(() => {
    saying = 0;
    saidAt = performance.now();
    said.textContent = [...news.values()].join(" ");
    news = new Map();
  }, Math.max(0, saidAt + SAY_MS - performance.now()));
}

document.addEventListener("insight", ({ detail: message }) => {
  if (only !== null && message.chain_id !== only) return;
  if (message.type === "scoring.drift_detected") {
    if (!finding || !(message.timestamp_us < finding.timestamp_us)) finding = message;
  } else if (message.windows && typeof message.windows === "object") {
    chains.set(typeof message.chain_id === "string" ? message.chain_id : null, message);
  }
  showing ||= setTimeout(show, SHOW_MS);
});
setInterval(() => { showing ||= setTimeout(show, SHOW_MS); }, LOOK_MS);
