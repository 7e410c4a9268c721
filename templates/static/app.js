// Progressive enhancement only: every page is complete without this file.
"use strict";

const PHASES = { checkout: "checking out", build: "building", list: "listing tests", restore: "restoring the tree",
  warm: "warming caches", execute: "running" };

function addCopyButtons(root) {
  for (const code of root.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: press Ctrl-C";
      }
    });
    code.closest(".command").append(button);
  }
}

let isFetching = false;
let isWanted = false;

// Fetch this page again, one at a time, and put its live part in place; what the reader opened stays open.
async function refresh() {
  if (isFetching) {
    isWanted = true;
    return;
  }
  isFetching = true;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (response.ok) replaceLive(new DOMParser().parseFromString(await response.text(), "text/html"));
  } catch {
    // The service is away: the next event or poll asks again.
  } finally {
    isFetching = false;
  }
  if (isWanted) {
    isWanted = false;
    await refresh();
  }
}

function replaceLive(page) {
  const fresh = page.getElementById("live");
  const live = document.getElementById("live");
  if (!fresh || !live) return;
  const opened = [...live.querySelectorAll("details[open][id]")].map((details) => details.id);
  const scrolled = live.querySelector(".strip .scroll")?.scrollLeft ?? 0;
  live.replaceChildren(...fresh.childNodes);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  const strip = live.querySelector(".strip .scroll");
  if (strip) strip.scrollLeft = scrolled;
}

function runningWords(block) {
  const name = block.purpose === "prepare" ? "Preparing the arms"
    : block.purpose === "probe" ? `Probe ${-block.index - 1}` : `Block ${block.index + 1}`;
  let words = `${name}: ${PHASES[block.phase] ?? block.phase ?? "starting"}`;
  if (block.arm_name) words += ` ${block.arm_name}`;
  if (block.total) words += `, test ${Math.min((block.done ?? 0) + 1, block.total)} of ${block.total}`;
  if (block.test) words += `: ${block.test}`;
  return block.host ? `${words} (on ${block.host})` : words;
}

function follow(live) {
  let mark = live.dataset.mark;
  const source = new EventSource(live.dataset.events);
  source.addEventListener("progress", (event) => {
    const data = JSON.parse(event.data);
    const list = live.querySelector("[data-running]");
    if (list) {
      list.replaceChildren(...data.running.map((block) => {
        const item = document.createElement("li");
        item.textContent = runningWords(block);
        return item;
      }));
    }
    if (data.mark !== mark) {
      mark = data.mark;
      refresh();
    }
  });
  source.addEventListener("end", () => {
    source.close();
    location.reload();
  });
}

document.documentElement.classList.add("js");
addCopyButtons(document);
const live = document.getElementById("live");
if (live?.dataset.events) follow(live);
if (live?.dataset.poll) setInterval(() => { if (!document.hidden) refresh(); }, 1000 * Number(live.dataset.poll));
