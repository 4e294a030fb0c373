// What pages do beside being read: they keep themselves up to date, show times in the reader's own
// zone, and listen to keys. Without this they are read and used all the same.
"use strict";

(function () {
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      time.textContent = local.format(new Date(time.dateTime));
    }
  }

  // Each part that changes has an id; what a reader has focused or is filling in stays.
  function replace(page) {
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(fresh.id);
      if (!old || old.contains(document.activeElement)) continue;
      localise(fresh);
      old.replaceWith(document.adoptNode(fresh));
    }
  }

  let busy = false;
  async function refresh() {
    if (busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") location.reload();
      if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // The next event tries again.
    }
    busy = false;
  }

  function follow() {
    if (!document.querySelector("main [data-live]")) return;
    const events = new EventSource("/api/v1/live");
    events.addEventListener("look", refresh);
  }

  // A run shows how far it is more often than the server is looked at.
  async function watchRun() {
    while (document.querySelector('[data-until="ended"]')) {
      await new Promise((wake) => setTimeout(wake, 500));
      await refresh();
    }
  }

  const keys = document.createElement("dialog");
  function showKeys() {
    if (!keys.isConnected) {
      const list = document.createElement("ul");
      for (const link of document.querySelectorAll("nav a[data-key]")) {
        const item = document.createElement("li");
        item.textContent = `g ${link.dataset.key}: ${link.textContent}`;
        list.append(item);
      }
      const rest = document.createElement("li");
      rest.textContent = "/: search, j and k: down and up a table, Enter: open, Esc: close";
      list.append(rest);
      keys.append(list);
      document.body.append(keys);
    }
    keys.showModal();
  }

  function step(by) {
    const links = [...document.querySelectorAll("main tbody tr a:first-of-type")];
    const at = links.indexOf(document.activeElement);
    const next = links[Math.min(links.length - 1, Math.max(0, at + by))];
    if (next) next.focus();
  }

  let went = false;
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, select, textarea");
    if (field || event.ctrlKey || event.metaKey || event.altKey) return;
    if (went) {
      went = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
      return;
    }
    if (event.key === "g") went = true;
    else if (event.key === "?") showKeys();
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "/") {
      event.preventDefault();
      const search = document.querySelector("form[role=search] input");
      if (search) search.focus();
      else location.assign("/messages");
    }
  });

  localise(document);
  follow();
  watchRun();
})();
