// Keeps an open page up to date: events change badges at once, and the rest follows by fetching the page again.
// Without this script or without a connection the page stays as it was loaded.

const main = document.getElementById("main");
const said = document.getElementById("said");
const state = document.getElementById("live-state");
const badges = document.getElementById("badges").content;
const channel = main.dataset.channel;
const isList = channel === "sessions";
const INSIGHTS = "insights"; // has no positions; strip.js shows its messages
const strip = document.getElementById("strip");
const ENDED = new Set(["scoring.completed", "scoring.failed"]);
const WAITING = new Set(["queued", "waiting_retry"]);
const OUTCOMES = new Set(["correct", "partial", "wrong"]), OTHER_OUTCOME = "other_outcome";
const NOTHING_TO_JUDGE = "nothing_to_judge"; // an error kind that is no failure
const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 30000, GONE_AFTER = 4; // attempts
const PING_MS = 20000, PONG_MS = 10000, READ_AGAIN_MS = 1500, FAILED_WAIT_MS = 5000, SHOW_MS = 80;
const LONGEST_READING_MS = 60000; // a fetch over a dead connection would otherwise block all later ones
const BACK_MS = 5000; // after an outage all pages reconnect at once; their fetches are spread over this
const MOST_FOLLOWED = 60; // sessions of a list whose channels are followed; a client may have 100 channels

let socket = null;
let position = Number(main.dataset.position);
let readAt = position; // position of the newest event when the page was fetched
const shownAt = new WeakMap(); // badge -> position of the last event that changed it
let attempts = 0;
let pending = new Map(); // score id -> its last event, not shown yet
let hasMore = false; // whether an event changes more than badges; a later event of the same score must not clear it
let showing = 0, reading = 0, isReading = false, isStale = false;
let meanwhile = new Map(); // score id -> its last event since a fetch began; the fetched page may lack it

// --- events ------------------------------------------------------------------------------------------

function stateOf(event) {
  if (event.type === "scoring.progress") return event.phase;
  if (event.type === "scoring.started") return "gathering_context";
  if (event.type === "scoring.failed") return event.error_kind === NOTHING_TO_JUDGE ? NOTHING_TO_JUDGE : event.status;
  const total = event.total_score, outcome = event.judge_outcome;
  if (total === null || total === undefined) return "completed";
  if (outcome) return OUTCOMES.has(outcome) ? outcome : OTHER_OUTCOME;
  return total >= 75 ? "75-100" : total >= 50 ? "50-74" : "0-49";
}

function concerns(badge, event) {
  if (badge.dataset.score) return badge.dataset.score === event.score_id;
  return event.purpose === "production" && badge.dataset.session === event.session_id;
}

// Whether the event changes more on the page than badges.
function changesMore(event) {
  if (ENDED.has(event.type) || event.phase === "queued") return true;
  // The page of one session also shows when an attempt started and what it waits for.
  return !isList && (event.type === "scoring.started" || WAITING.has(event.phase));
}

function show() {
  showing = 0;
  const events = [...pending.values()];
  let isNews = hasMore;
  pending = new Map();
  hasMore = false;
  for (const event of events) {
    const found = replaceAll(event);
    if (!isList && !found.length) isNews = true;
    if (found.length && (!isList || ENDED.has(event.type))) announce(found[0].isConnected ? found[0] : null, event);
  }
  if (isList) follow();
  if (isNews) readAgain();
}

function replaceAll(event) {
  const found = [...main.querySelectorAll(".badge[data-session], .badge[data-score]")].filter((b) => concerns(b, event));
  for (const badge of found) replace(badge, event);
  return found;
}

function replace(badge, event) {
  shownAt.set(badge, event.position);
  const wanted = stateOf(event);
  const model = badges.querySelector(`[data-state="${CSS.escape(wanted)}"]`);
  if (!model || (badge.dataset.state === wanted && !ENDED.has(event.type))) return;
  badge.className = model.className;
  badge.replaceChildren(...[...model.cloneNode(true).childNodes]);
  badge.dataset.state = wanted;
  badge.toggleAttribute("data-busy", model.hasAttribute("data-busy"));
  badge.parentElement.querySelector("[data-waits]")?.remove(); // the reason belongs to the previous state
  const number = badge.querySelector("b");
  if (number) number.textContent = String(event.total_score);
  if (wanted === OTHER_OUTCOME) badge.querySelector(".word").textContent = event.judge_outcome.replaceAll("_", " ");
}

function wordsOf(badge) {
  return badge ? badge.textContent.trim().replace(/\s+/g, " ") : "";
}

function announce(badge, event) {
  const words = wordsOf(badge);
  if (words) said.textContent = isList ? `${event.session_id}: ${words}` : words;
}

// --- fetching the page again -------------------------------------------------------------------------

// The only text that may become markup is a page of this site; the content policy refuses every other.
const asText = { createHTML: (text) => text };
const ownPages = window.trustedTypes?.createPolicy("own-pages", asText) ?? asText;

function readAgain(wait = isList ? READ_AGAIN_MS * (1 + Math.random()) : READ_AGAIN_MS / 5) {
  isStale = true;
  if (reading || isReading || document.hidden) return;
  reading = setTimeout(async () => {
    reading = 0;
    isReading = true;
    isStale = false;
    meanwhile = new Map();
    let hasFailed = true;
    const patience = new AbortController();
    const limit = setTimeout(() => patience.abort(), LONGEST_READING_MS);
    try {
      const how = { headers: { Accept: "text/html" }, cache: "no-store", signal: patience.signal };
      const answer = await fetch(location.href, how);
      if (answer.ok) swap(new DOMParser().parseFromString(ownPages.createHTML(await answer.text()), "text/html"));
      hasFailed = !answer.ok;
    } catch {
      // The server is busy or unreachable: the fetch is repeated below.
    } finally {
      clearTimeout(limit);
      isReading = false;
      if (hasFailed) setTimeout(readAgain, FAILED_WAIT_MS * (1 + Math.random()));
      else if (isStale) readAgain();
    }
  }, wait);
}

function swap(fresh) {
  const before = wordsOf(newestBadge());
  for (const region of main.querySelectorAll("[data-region]")) {
    const next = fresh.getElementById(region.id);
    if (!next || withoutKeys(next) === withoutKeys(region)) continue;
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input:not([type=hidden]), select, textarea")) {
      continue; // the user is typing there
    }
    if ([...region.querySelectorAll("select, input:not([type=hidden])")].some(isChanged)) continue; // or has changed a field
    for (const details of region.querySelectorAll("details[id]")) {
      const same = [...next.querySelectorAll("details[id]")].find((d) => d.id === details.id);
      if (same) same.open = details.open;
    }
    region.className = next.className;
    region.replaceChildren(...[...next.childNodes].map((n) => document.importNode(n, true)));
    if (focused && focused.id) document.getElementById(focused.id)?.focus({ preventScroll: true });
  }
  readAt = Number(fresh.getElementById("main")?.dataset.position ?? readAt);
  for (const event of meanwhile.values()) if (event.position > readAt) replaceAll(event);
  const now = wordsOf(newestBadge());
  if (!isList && now && now !== before) said.textContent = now; // an attempt that had no badge before
  if (fresh.title) document.title = fresh.title;
  if (isList) follow();
}

// On the page of a session its newest attempt stands first.
function newestBadge() {
  return main.querySelector(".badge[data-session], .badge[data-score]");
}

// Each response has new idempotency keys, which are not a change.
function withoutKeys(region) {
  return region.innerHTML.replaceAll(/name="key" value="[^"]*"/g, "");
}

function isChanged(field) {
  if (!(field instanceof HTMLSelectElement)) return field.value !== field.defaultValue;
  return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
}

// --- the connection ----------------------------------------------------------------------------------

const followed = new Set();
const unconfirmed = new Map(); // requested channels -> first position; until they are confirmed, positions of other channels must not pass theirs

// Phases arrive on the channel of each session, so follow the sessions that are being scored. Sessions that were followed
// `before` an outage are known up to `position`, the others up to the last event of their badge.
function follow(before = new Set()) {
  const busy = new Map([...main.querySelectorAll(".badge[data-busy][data-session]")].map((b) => [b.dataset.session, b]));
  for (const id of followed) {
    if (!busy.has(id) && followed.delete(id)) send({ action: "unsubscribe", channel: `session:${id}` });
  }
  for (const [id, badge] of busy) {
    if (followed.has(id) || followed.size >= MOST_FOLLOWED) continue;
    const from = before.has(id) ? position : (shownAt.get(badge) ?? readAt);
    if (subscribe(`session:${id}`, from)) followed.add(id);
  }
}

function subscribe(name, from) {
  if (!send({ action: "subscribe", channel: name, last_event_id: from })) return false;
  unconfirmed.set(name, from);
  return true;
}

function send(message) {
  if (!socket || socket.readyState !== WebSocket.OPEN) return false;
  socket.send(JSON.stringify(message));
  return true;
}

function connect() {
  const own = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/v1/ws`);
  let ping = 0, pong = 0;
  socket = own;
  own.onopen = () => {
    const before = new Set([...followed].filter((id) => !unconfirmed.has(`session:${id}`)));
    followed.clear();
    unconfirmed.clear();
    subscribe(channel, position);
    if (strip && channel !== INSIGHTS) subscribe(INSIGHTS, position);
    if (isList) follow(before);
    ping = setInterval(() => {
      send({ action: "ping" });
      pong ||= setTimeout(() => lost({ reason: "" }), PONG_MS); // the connection is dead
    }, PING_MS);
  };
  own.onmessage = (message) => {
    clearTimeout(pong);
    pong = 0;
    take(JSON.parse(message.data));
  };
  const lost = (closed) => {
    clearInterval(ping);
    clearTimeout(pong);
    if (socket !== own) return;
    socket = null;
    own.close();
    if (closed.reason.startsWith("positions begin anew")) {
      setTimeout(() => location.reload(), LONGEST_WAIT_MS / 10 * Math.random());
      return;
    }
    showState(++attempts >= GONE_AFTER ? "gone" : "off");
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (attempts - 1));
    setTimeout(connect, wait * (0.5 + Math.random() / 2));
  };
  own.onclose = lost;
}

function take(event) {
  if (event.type === "subscription.confirmed") position = Math.min(position, unconfirmed.get(event.channel) ?? position);
  if (event.type === "subscription.confirmed" || event.type === "subscription.error") unconfirmed.delete(event.channel);
  if (event.type === "subscription.confirmed" && event.channel === channel) {
    if (attempts && channel !== INSIGHTS) readAgain(BACK_MS * Math.random()); // missed events arrive now; the fetch brings what no event carries
    attempts = 0;
    showState("on");
  } else if (event.type === "catchup.overflow") {
    readAgain();
  } else if (event.type === "scoring.windows" || event.type === "scoring.drift_detected") {
    document.dispatchEvent(new CustomEvent("insight", { detail: event }));
  } else if (event.score_id && event.position) {
    if (!unconfirmed.size) position = Math.max(position, event.position);
    pending.delete(event.score_id); // keeps the order of last events
    pending.set(event.score_id, event);
    if (isReading) {
      meanwhile.delete(event.score_id);
      meanwhile.set(event.score_id, event);
    }
    hasMore ||= changesMore(event);
    showing ||= setTimeout(show, SHOW_MS);
  }
}

function showState(how) {
  state.hidden = false;
  // Screen readers announce "Live" only after an interruption.
  state.ariaLive = how === "on" && !state.textContent ? "off" : "polite";
  state.classList.toggle("on", how === "on");
  state.textContent = state.dataset[how];
}

document.addEventListener("visibilitychange", () => document.hidden || !isStale || readAgain());
addEventListener("pageshow", (event) => event.persisted && readAgain());
connect();
