// Shows the timeline on the page of a score, once its details are opened. Without this script they hold a link to the
// page of the timeline, whose content is shown here.

const details = document.getElementById("timeline");
const content = document.getElementById("timeline-content");
const said = document.getElementById("timeline-said");
const page = new URL(details.dataset.address, location.href);
const MOST_MS = 60000;
let reading = null; // the newest request; an older one must not replace its content

// A request for a document parses the answer without running anything of it.
function read(address, focus) {
  reading?.abort();
  const request = (reading = new XMLHttpRequest());
  request.open("GET", address);
  request.setRequestHeader("Accept", "text/html");
  request.responseType = "document";
  request.timeout = MOST_MS;
  tell("Reading the timeline…", false);
  request.onload = () => show(request, focus);
  request.onerror = request.ontimeout = () => fail("The timeline could not be read: close this and open it again.");
  request.send();
}

function show(request, focus) {
  const body = request.response?.getElementById("timeline-body");
  if (!body) {
    fail(request.response?.querySelector("main p")?.textContent ?? "The timeline could not be read.");
    return;
  }
  content.replaceChildren(...[...body.childNodes].map((node) => document.importNode(node, true)));
  tell(content.querySelector("[data-count]")?.textContent ?? "", true);
  if (focus) document.getElementById(focus)?.focus();
}

// Only screen readers need a text that the content shows as well.
function tell(text, isShown) {
  said.textContent = text;
  said.classList.toggle("unseen", isShown);
}

function fail(why) {
  tell(why, false);
  details.addEventListener("toggle", begin);
}

function begin() {
  if (!details.open) return;
  details.removeEventListener("toggle", begin);
  read(page, "");
}

details.addEventListener("toggle", begin);

content.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || link.pathname !== page.pathname || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const id = link.hash.slice(1);
  const entry = link.matches(".cites a") && document.getElementById(id);
  if (!entry) {
    read(link.href, id || "timeline-first");
    return;
  }
  for (const folded of entry.querySelectorAll("details")) folded.open = true;
  entry.focus();
});

content.addEventListener("submit", (event) => {
  event.preventDefault();
  read(`${page.pathname}?${new URLSearchParams(new FormData(event.target))}`, "timeline-first");
});
