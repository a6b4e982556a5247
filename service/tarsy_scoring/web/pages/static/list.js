// Keys, saved filters and remembered columns of the list of sessions; all of it is kept in this browser.
// The address is the filter: a saved filter is a link. Without this script the list and its form work as before.

const form = document.querySelector("form.filters");
const boxes = [...form.querySelectorAll('[name="columns"][type="checkbox"]')];
const dialog = document.getElementById("keys");
const useKeys = document.getElementById("use-keys");
const saved = document.getElementById("saved");
const links = document.getElementById("saved-links");
const saveForm = document.getElementById("save-filter");
const nameField = document.getElementById("saved-name");
const said = document.getElementById("saved-said");
const FILTERS = "list.filters", COLUMNS = "list.columns", KEYS = "list.keys";
const MOST_SAVED = 30;

// --- what the browser keeps ---------------------------------------------------------------------------

// A browser may refuse to store anything, and what it has may be of another version.
function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// --- columns ------------------------------------------------------------------------------------------

const address = new URLSearchParams(location.search);
const known = new Set(boxes.map((box) => box.value));
const remembered = read(COLUMNS);
if (!address.has("columns") && Array.isArray(remembered)) {
  const wanted = remembered.filter((name) => known.has(name));
  if (wanted.join() !== boxes.filter((box) => box.checked).map((box) => box.value).join()) {
    address.set("columns", wanted.join() || "score");
    location.replace(`${location.pathname}?${address}${location.hash}`);
  }
}
form.addEventListener("submit", () => {
  write(COLUMNS, boxes.filter((box) => box.checked).map((box) => box.value));
});

// --- saved filters ------------------------------------------------------------------------------------

// Fields of the form that narrow or sort the list, without columns, the place in the list and empty fields.
function filterOf(parameters) {
  const kept = [...parameters].filter(([name, value]) => value && name !== "columns" && name !== "cursor");
  return new URLSearchParams(kept.filter(([name, value]) => name !== "sort" || value !== "newest")).toString();
}

function savedFilters() {
  const found = read(FILTERS);
  if (!Array.isArray(found)) return [];
  return found.filter((one) => typeof one?.name === "string" && typeof one.query === "string").slice(0, MOST_SAVED);
}

function showSaved() {
  const filters = savedFilters();
  const here = filterOf(address);
  links.replaceChildren(...filters.map((one) => entry(one, here)));
  saveForm.hidden = !here || filters.some((one) => one.query === here);
  saved.hidden = !filters.length && saveForm.hidden && !said.textContent;
}

function entry(one, here) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = `/?${filterOf(new URLSearchParams(one.query))}`;
  link.textContent = one.name;
  if (one.query === here) link.setAttribute("aria-current", "page");
  const remove = document.createElement("button");
  remove.type = "button";
  remove.textContent = "×";
  remove.setAttribute("aria-label", `Remove the saved filter ${one.name}`);
  remove.addEventListener("click", () => {
    keep(savedFilters().filter((other) => other.name !== one.name), `Removed: ${one.name}`);
    (links.querySelector("button") ?? nameField).focus();
  });
  item.append(link, remove);
  return item;
}

function keep(filters, words) {
  said.textContent = write(FILTERS, filters) ? words : "This browser stores nothing for this page: bookmark the address instead.";
  showSaved();
}

saveForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = nameField.value.trim();
  if (!name) return;
  const others = savedFilters().filter((one) => one.name !== name);
  if (others.length >= MOST_SAVED) {
    said.textContent = `There are ${MOST_SAVED} saved filters already: remove one first.`;
    return;
  }
  nameField.value = "";
  keep([...others, { name, query: filterOf(address) }], `Saved in this browser: ${name}`);
  links.querySelector("li:last-child a")?.focus();
});

addEventListener("storage", showSaved); // another tab saved or removed one
showSaved();

// --- keys ---------------------------------------------------------------------------------------------

function rows() {
  return [...document.querySelectorAll("#region-rows tbody th a[id]")];
}

function move(step) {
  const all = rows();
  const place = all.findIndex((link) => link.closest("tr").contains(document.activeElement));
  const next = place < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, place + step));
  all[next]?.focus();
}

const actions = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => document.getElementById("q").select(), // also focuses
  "?": () => dialog.showModal(),
};

function isTyping(element) {
  return element.closest("input:not([type=checkbox]), select, textarea, [contenteditable], dialog") !== null;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !useKeys.checked) return;
  if (!Object.hasOwn(actions, event.key) || isTyping(event.target)) return;
  event.preventDefault();
  actions[event.key]();
});

const show = document.getElementById("show-keys");
show.hidden = false;
show.addEventListener("click", () => dialog.showModal());
useKeys.checked = read(KEYS) !== false;
useKeys.addEventListener("change", () => write(KEYS, useKeys.checked));
