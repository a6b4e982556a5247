// Keeps a page as it would be read anew: badges at once, out of events; the rest by reading the page again.
// Without this script, or without a connection, the page is as it was when it was loaded.

const main = document.getElementById("main");
const said = document.getElementById("said");
const state = document.getElementById("live-state");
const badges = document.getElementById("badges").content;
const channel = main.dataset.channel;
const isList = channel === "sessions";
const INSIGHTS = "insights"; // without positions; what it tells is shown by strip.js, where a page has that
const strip = document.getElementById("strip");
const ENDED = new Set(["scoring.completed", "scoring.failed"]);
const WAITING = new Set(["queued", "waiting_retry"]);
const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 30000, GONE_AFTER = 4; // attempts
const PING_MS = 20000, PONG_MS = 10000, READ_AGAIN_MS = 1500, FAILED_WAIT_MS = 5000, SHOW_MS = 80;
const LONGEST_READING_MS = 60000; // a connection that is gone without a word would keep the page as it is
const BACK_MS = 5000; // after an outage all pages come back at once: they are read again spread over this
const MOST_FOLLOWED = 60; // sessions of a list whose phases are followed, of the 100 channels a client may have

let socket = null;
let position = Number(main.dataset.position);
let readAt = position; // where events stood when the page was read
const toldAt = new WeakMap(); // badge -> position of the last event that it was told, if any
let attempts = 0;
let pending = new Map(); // score id -> its last event, not shown yet
let hasMore = false; // whether events told what no badge shows; a later event of the same score must not hide that
let showing = 0, reading = 0, isReading = false, isStale = false;
let meanwhile = new Map(); // score id -> its last event since the page began to be read again, which may not know it

// --- what events do ----------------------------------------------------------------------------------

function stateOf(event) {
  if (event.type === "scoring.progress") return event.phase;
  if (event.type === "scoring.started") return "gathering_context";
  if (event.type === "scoring.failed") return event.status;
  const total = event.total_score;
  return total === null || total === undefined ? "completed" : total >= 75 ? "good" : total >= 50 ? "fair" : "weak";
}

function concerns(badge, event) {
  if (badge.dataset.score) return badge.dataset.score === event.score_id;
  return event.purpose === "production" && badge.dataset.session === event.session_id;
}

// Whether the page tells of it beside the badge.
function tellsMore(event) {
  if (ENDED.has(event.type) || event.phase === "queued") return true;
  // A page of one session also tells when an attempt began and what it waits for.
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
    if (found.length && (!isList || ENDED.has(event.type))) say(found[0].isConnected ? found[0] : null, event);
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
  toldAt.set(badge, event.position);
  const wanted = stateOf(event);
  const model = badges.querySelector(`[data-state="${CSS.escape(wanted)}"]`);
  if (!model || (badge.dataset.state === wanted && !ENDED.has(event.type))) return;
  badge.className = model.className;
  badge.replaceChildren(...[...model.cloneNode(true).childNodes]);
  badge.dataset.state = wanted;
  badge.toggleAttribute("data-busy", model.hasAttribute("data-busy"));
  badge.parentElement.querySelector("[data-waits]")?.remove(); // it told what the one before waited for
  const number = badge.querySelector("b");
  if (number) number.textContent = String(event.total_score);
}

function say(badge, event) {
  const words = badge ? badge.textContent.trim().replace(/\s+/g, " ") : "";
  if (words) said.textContent = isList ? `${event.session_id}: ${words}` : words;
}

// --- reading the page again --------------------------------------------------------------------------

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
      if (answer.ok) swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      hasFailed = !answer.ok;
    } catch {
      // Busy, cut off or silent: what came is not forgotten.
    } finally {
      clearTimeout(limit);
      isReading = false;
      if (hasFailed) setTimeout(readAgain, FAILED_WAIT_MS * (1 + Math.random()));
      else if (isStale) readAgain();
    }
  }, wait);
}

function swap(fresh) {
  for (const region of main.querySelectorAll("[data-region]")) {
    const next = fresh.getElementById(region.id);
    if (!next || withoutKeys(next) === withoutKeys(region)) continue;
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input:not([type=hidden]), select, textarea")) {
      continue; // somebody is writing there
    }
    if ([...region.querySelectorAll("select, input:not([type=hidden])")].some(isChanged)) continue; // or has chosen
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
  if (fresh.title) document.title = fresh.title;
  if (isList) follow();
}

// Each rendering gives its forms new keys, which is no news.
function withoutKeys(region) {
  return region.innerHTML.replaceAll(/name="key" value="[^"]*"/g, "");
}

function isChanged(field) {
  if (!(field instanceof HTMLSelectElement)) return field.value !== field.defaultValue;
  return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
}

// --- the connection ----------------------------------------------------------------------------------

const followed = new Set();
const unconfirmed = new Map(); // channels asked for, and from where: until they are here, other channels' positions hide their events

// Phases come on the channel of each session: follow the ones that are being scored. What is known of those that were
// followed `before` an outage is known up to `position`, and of others what their badges tell.
function follow(before = new Set()) {
  const busy = new Map([...main.querySelectorAll(".badge[data-busy][data-session]")].map((b) => [b.dataset.session, b]));
  for (const id of followed) {
    if (!busy.has(id) && followed.delete(id)) send({ action: "unsubscribe", channel: `session:${id}` });
  }
  for (const [id, badge] of busy) {
    if (followed.has(id) || followed.size >= MOST_FOLLOWED) continue;
    const from = before.has(id) ? position : (toldAt.get(badge) ?? readAt);
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
      pong ||= setTimeout(() => lost({ reason: "" }), PONG_MS); // the other side is gone without a word
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
    tell(++attempts >= GONE_AFTER ? "gone" : "off");
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (attempts - 1));
    setTimeout(connect, wait * (0.5 + Math.random() / 2));
  };
  own.onclose = lost;
}

function take(event) {
  if (event.type === "subscription.confirmed") position = Math.min(position, unconfirmed.get(event.channel) ?? position);
  if (event.type === "subscription.confirmed" || event.type === "subscription.error") unconfirmed.delete(event.channel);
  if (event.type === "subscription.confirmed" && event.channel === channel) {
    if (attempts && channel !== INSIGHTS) readAgain(BACK_MS * Math.random()); // we were away: what we missed comes now, and what no event tells with the page
    attempts = 0;
    tell("on");
  } else if (event.type === "catchup.overflow") {
    readAgain();
  } else if (event.type === "scoring.windows" || event.type === "scoring.drift_detected") {
    document.dispatchEvent(new CustomEvent("insight", { detail: event }));
  } else if (event.score_id && event.position) {
    if (!unconfirmed.size) position = Math.max(position, event.position);
    pending.delete(event.score_id); // so that they stand in the order of their last events
    pending.set(event.score_id, event);
    if (isReading) {
      meanwhile.delete(event.score_id);
      meanwhile.set(event.score_id, event);
    }
    hasMore ||= tellsMore(event);
    showing ||= setTimeout(show, SHOW_MS);
  }
}

function tell(how) {
  state.hidden = false;
  // That it is live is news only to somebody who was told that it is not.
  state.ariaLive = how === "on" && !state.textContent ? "off" : "polite";
  state.classList.toggle("on", how === "on");
  state.textContent = state.dataset[how];
}

document.addEventListener("visibilitychange", () => document.hidden || !isStale || readAgain());
addEventListener("pageshow", (event) => event.persisted && readAgain());
connect();
