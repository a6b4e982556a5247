// Keeps an open page up to date: after an event the page is fetched again, and its changed regions are replaced.
// It also spares page loads: a list scores in place, and a citation shows its entry beside the text. Without this script every link and form works as plain HTML.

const main = document.getElementById("main");
const said = document.getElementById("said");
const state = document.getElementById("live-state");
const isList = main.dataset.channel === "sessions";
const SOON_MS = isList ? 1500 : 300; // the events of this time cause one fetch
const FETCH_MS = 60000, FETCH_AGAIN_MS = 5000;
const PING_MS = 20000, SILENCE_MS = 30000;
const FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30000, GONE_AFTER = 4; // attempts
const MOST_FOLLOWED = 60; // channels; a client may have 100

let timer = 0, isReading = false, isStale = false;
let attempts = 0;

// --- fetching the page again ---------------------------------------------------------------------------

// A request for a document parses the answer without running anything in it. Null: it failed.
function fetchPage(address = location.href) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.setRequestHeader("Accept", "text/html");
    request.responseType = "document";
    request.timeout = FETCH_MS;
    request.onloadend = () => resolve(request.status === 200 ? request.response : null);
    request.send();
  });
}

function readSoon(wait = SOON_MS) {
  isStale = true;
  if (timer || isReading || document.hidden) return;
  timer = setTimeout(read, wait * (1 + Math.random()));
}

async function read() {
  timer = 0;
  isReading = true;
  isStale = false;
  const fresh = await fetchPage();
  isReading = false;
  if (fresh) swap(fresh);
  if (!fresh || isStale) readSoon(fresh ? SOON_MS : FETCH_AGAIN_MS);
}

function swap(fresh) {
  const before = newestState();
  for (const region of main.querySelectorAll("[data-region]")) {
    const next = fresh.getElementById(region.id);
    if (!next || withoutKeys(next) === withoutKeys(region) || isInUse(region)) continue;
    const focused = region.contains(document.activeElement) ? document.activeElement.id : "";
    for (const details of region.querySelectorAll("details[id]")) {
      const same = next.querySelector(`#${CSS.escape(details.id)}`);
      if (same) same.open = details.open;
    }
    region.className = next.className;
    region.replaceChildren(...document.importNode(next, true).childNodes);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
  main.dataset.position = fresh.getElementById("main").dataset.position;
  document.title = fresh.title;
  const now = newestState();
  if (!isList && now !== before) said.textContent = now;
}

// Each response has new idempotency keys, which are not a change.
function withoutKeys(region) {
  return region.innerHTML.replaceAll(/name="key" value="[^"]*"/g, "");
}

// Whether the user is typing in a region, or has changed a field.
function isInUse(region) {
  return [...region.querySelectorAll("select, textarea, input:not([type=hidden])")].some((field) => {
    if (field === document.activeElement) return true;
    if (!(field instanceof HTMLSelectElement)) return field.value !== field.defaultValue;
    return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
  });
}

// On the page of a session its newest attempt stands first.
function newestState() {
  return main.querySelector(".badge")?.textContent.trim().replace(/\s+/g, " ") ?? "";
}

// --- the connection ------------------------------------------------------------------------------------

function connect() {
  const socket = new WebSocket(`${location.origin.replace("http", "ws")}/api/v1/ws`);
  const followed = new Set();
  const send = (message) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  const ping = setInterval(() => send({ action: "ping" }), PING_MS);
  let silence = setTimeout(end, SILENCE_MS);

  // The phases of a score arrive on the channel of its session, so a list follows the sessions that are being scored.
  function follow() {
    const busy = [...main.querySelectorAll(".badge[data-busy]")].map((badge) => `session:${badge.dataset.session}`);
    const wanted = new Set([main.dataset.channel, ...busy].slice(0, MOST_FOLLOWED));
    for (const channel of followed) {
      if (!wanted.has(channel) && followed.delete(channel)) send({ action: "unsubscribe", channel });
    }
    for (const channel of wanted) {
      if (followed.has(channel)) continue;
      followed.add(channel);
      send({ action: "subscribe", channel, last_event_id: Number(main.dataset.position) });
    }
  }

  function end() {
    socket.onclose = socket.onmessage = null;
    socket.close();
    clearInterval(ping);
    clearTimeout(silence);
    observer.disconnect();
    showState(++attempts >= GONE_AFTER ? "gone" : "off");
    setTimeout(comeBack, Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempts) * (0.25 + Math.random()));
  }

  const observer = new MutationObserver(follow);
  socket.onopen = () => {
    follow();
    observer.observe(main, { childList: true, subtree: true });
  };
  socket.onmessage = ({ data }) => {
    clearTimeout(silence);
    silence = setTimeout(end, SILENCE_MS);
    const event = JSON.parse(data);
    if (event.type === "subscription.confirmed" && event.channel === main.dataset.channel) {
      attempts = 0;
      showState("on");
    } else if (event.score_id || event.type === "catchup.overflow") {
      readSoon();
    }
  };
  socket.onclose = end;
}

// Fetches the page before it connects, so that its position is one that the server knows.
async function comeBack() {
  const fresh = await fetchPage();
  if (fresh) swap(fresh);
  connect();
}

function showState(how) {
  state.hidden = false;
  // Screen readers announce "Live" only after an interruption.
  state.ariaLive = how === "on" && !state.textContent ? "off" : "polite";
  state.classList.toggle("on", how === "on");
  state.textContent = state.dataset[how];
}

document.addEventListener("visibilitychange", () => document.hidden || !isStale || readSoon());
if (main.dataset.channel) {
  addEventListener("pageshow", (event) => event.persisted && readSoon());
  connect();
}

// --- without leaving the page --------------------------------------------------------------------------

// A list requests a score in place; a refused form is sent again as plain HTML, and its answer says why.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!isList || !form.closest("[data-region]")) return;
  event.preventDefault();
  form.closest("tr").querySelector("a").focus(); // the button goes
  said.textContent = `${form.querySelector("button").ariaLabel}: requested`;
  const request = { method: "POST", body: new URLSearchParams(new FormData(form)), redirect: "manual" };
  const answer = await fetch(form.action, request).catch(() => null);
  if (answer?.type === "opaqueredirect") readSoon(0);
  else {
    if (!form.isConnected) document.body.append(form); // an update replaced it meanwhile; alone it would not be sent
    form.submit();
  }
});

// Where a panel stands beside the text, a link to an entry of the timeline shows the entry there.
const panel = document.getElementById("entry");

document.addEventListener("click", async (event) => {
  const link = event.target.closest('a[href*="#timeline-"]');
  const isBeside = panel && getComputedStyle(panel.parentElement).position === "sticky";
  if (!link || !isBeside || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const entry = (await fetchPage(link.href))?.getElementById(link.hash.slice(1));
  if (!entry) return location.assign(link.href);
  main.querySelector("a.shown")?.classList.remove("shown");
  link.classList.add("shown");
  panel.replaceChildren(document.importNode(entry, true));
  panel.hidden = false;
  panel.parentElement.scrollTop = 0;
  said.textContent = `Shown beside the text: ${entry.querySelector("h3").textContent}`;
});

// The timeline arrives when it is unfolded, because reading a session again takes time.
document.addEventListener("toggle", async ({ target }) => {
  if (target.id !== "steps") return;
  const list = document.getElementById("steps-list");
  list.hidden = !target.open;
  if (!target.open || list.firstChild) return;
  const entries = (await fetchPage(target.querySelector("a").href))?.querySelector("section[aria-label=Entries]");
  if (entries) list.replaceChildren(...document.importNode(entries, true).childNodes);
  for (const one of list.querySelectorAll("[id]")) one.removeAttribute("id");
}, true);

// On the review page a digit chooses a label, and Enter saves it.
document.addEventListener("keydown", ({ key, target, ctrlKey, metaKey, altKey }) => {
  if (ctrlKey || metaKey || altKey || target.matches("input:not([type=radio]), textarea, select")) return;
  const choice = document.getElementById(`said-${key}`);
  choice?.click();
  choice?.focus();
});

const menu = document.getElementById("menu");
document.addEventListener("click", ({ target }) => menu.contains(target) || (menu.open = false));
document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape" || !menu.open) return;
  menu.open = false;
  menu.firstElementChild.focus();
});
