// Keeps an open page up to date. Without it the page works too: the server renders all of it.
//
// The server says over `/v1/events` that something has changed. The script then fetches the same page and puts in the
// sections that differ. It never makes HTML from text of its own, and never runs what it fetches. Between two fetches
// it counts the distances of times on.
//
// Every two seconds the server says at least that it is alive. If nothing comes, the script asks; without an answer it
// says so at the top of the page, and greys the rest.
"use strict";

(() => {
  const live = document.getElementById("live");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const SHORTEST = 1000; // ms between two fetches
  const FALLBACK = 10000; // ms between two fetches without events
  const LATE = 10000; // ms that the node has to send the page
  const QUIET = 5000; // ms without a word from the node, after which it is asked
  const PATIENCE = 3000; // ms that it has to answer then
  const stale = document.getElementById("stale");
  const main = document.getElementById("main");
  const node = stale.dataset.node;
  let ahead = Number(main.dataset.now) - Date.now(); // of the node's clock before this one, in ms
  let heard = Date.now(); // when the node said something last
  let shown = Date.now(); // the moment that the page shows
  let asking = false;
  let askAt = 0; // not before this time
  let due = false; // the page has changed, and is to be fetched
  let tag = "";
  let timer = 0;
  let last = 0;
  let busy = false;
  let title = document.title;
  let again = false;

  const say = (text) => {
    if (live.textContent !== text) live.textContent = text;
  };

  // The page does not show how things are now.
  const outdated = (why) => {
    const at = new Date(shown + ahead).toISOString().slice(11, 19);
    const text = `${why} This page shows how things were at ${at} UTC.`;
    if (stale.textContent !== text) stale.textContent = text;
    stale.hidden = false;
    main.classList.add("old");
    document.title = `Not up to date – cronkeeper on ${node}`;
    say("This page is not up to date.");
  };

  const current = () => {
    [heard, shown] = [Date.now(), Date.now()];
    stale.hidden = true;
    main.classList.remove("old");
    document.title = title;
    const isOld = main.querySelector("section.old") !== null;
    say(isOld ? "This page shows what the node knows now; what is grey may be old." : "This page is up to date.");
  };

  // The node said something.
  const hear = () => {
    heard = Date.now();
    if (!stale.hidden) soon();
    else if (!due && !busy) shown = heard;
  };

  // Asks the node whether it is alive, if it has said nothing for a while.
  const ask = async () => {
    const now = Date.now();
    if (document.hidden || asking || now - heard < QUIET || now < askAt) return;
    asking = true;
    try {
      await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      hear();
    } catch {
      outdated(`${node} does not answer.`);
      askAt = Date.now() + 2000;
    }
    asking = false;
  };

  const amount = (seconds) => {
    const size = Math.max(0, seconds);
    const [minutes, hours] = [Math.floor(size / 60), Math.floor(size / 3600)];
    if (size < 60) return `${size} s`;
    if (hours < 1) return `${minutes} min`;
    if (hours < 10 && minutes % 60 > 0) return `${hours} h ${minutes % 60} min`;
    return hours < 48 ? `${hours} h` : `${Math.floor(size / 86400)} days`;
  };

  // The words of times.rs.
  const distance = (seconds, kind) => {
    if (kind === "since") return amount(-seconds);
    if (seconds > 0) return `in ${amount(seconds)}`;
    if (kind === "due") return seconds >= -2 ? "now" : `due ${amount(-seconds)} ago`;
    return seconds < 0 ? `${amount(-seconds)} ago` : "just now";
  };

  // Updates relative times, unless the page is outdated: then it is not known what comes nearer.
  const count = () => {
    if (document.hidden || !stale.hidden) return;
    const now = Math.floor((Date.now() + ahead) / 1000);
    for (const time of main.getElementsByTagName("time")) {
      const seconds = Date.parse(time.dateTime) / 1000 - now;
      // The words of what is further away are a date.
      if (Math.abs(seconds) >= 86400 && time.dataset.kind !== "since") continue;
      const text = distance(seconds, time.dataset.kind);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // Where the elements with a key are, so that those that move can be seen to move.
  const places = (section) => {
    const found = new Map();
    for (const element of section.querySelectorAll(".queue [data-key]")) {
      found.set(element.dataset.key, element.getBoundingClientRect());
    }
    return found;
  };

  const animate = (section, before) => {
    if (calm.matches) return;
    for (const element of section.querySelectorAll(".queue [data-key]")) {
      const old = before.get(element.dataset.key);
      const now = element.getBoundingClientRect();
      const frames = old
        ? [{ transform: `translate(${old.left - now.left}px, ${old.top - now.top}px)` }, { transform: "none" }]
        : [{ opacity: 0 }, { opacity: 1 }];
      element.animate(frames, { duration: 400, easing: "ease-out" });
    }
  };

  // A section in which somebody types now is left alone for a moment.
  const TYPING = 5000; // ms after the last key
  let typedAt = 0;
  const inUse = (section) => {
    const focused = document.activeElement;
    return focused && section.contains(focused) && Date.now() - typedAt < TYPING;
  };

  // What somebody has typed, chosen or opened.
  const given = (section) => {
    const changed = (field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked;
    const fields = [...section.querySelectorAll("input[id]")].filter(changed);
    const open = [...section.querySelectorAll("details[id][open]")].map((details) => details.id);
    return { fields: fields.map(({ id, value, checked }) => ({ id, value, checked })), open };
  };

  const giveBack = ({ fields, open }) => {
    for (const { id, value, checked } of fields) {
      const field = document.getElementById(id);
      if (field) [field.value, field.checked] = [value, checked];
    }
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  };

  // The box of output is turned round: its end is at 0, and what is before it is below 0.
  const END = 4; // px from the end that count as the end
  const fromTop = (box) => box.scrollHeight - box.clientHeight + box.scrollTop;

  const putText = (old, next) => {
    if (old && next && old.textContent !== next.textContent) old.replaceChildren(...next.childNodes);
  };

  const sameTimes = (old, next) => {
    // Distances alone are no difference: they are counted on here.
    const copy = next.cloneNode(true);
    const times = [old, copy].map((section) => section.getElementsByTagName("time"));
    for (let i = 0; i < times[1].length; i++) {
      if (times[0][i]) times[1][i].textContent = times[0][i].textContent;
    }
    const opened = [...old.querySelectorAll("details[open]")];
    opened.forEach((details) => details.removeAttribute("open"));
    const same = old.isEqualNode(copy);
    opened.forEach((details) => details.setAttribute("open", ""));
    return same;
  };

  const replace = (old, next) => {
    if (sameTimes(old, next)) return;
    old.className = next.className;
    old.toggleAttribute("data-following", next.hasAttribute("data-following"));
    if (inUse(old)) {
      setTimeout(refetch, TYPING);
      return;
    }
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    const id = focus?.id;
    const href = focus?.getAttribute("href");
    const caret = focus?.matches("input[type=search], input:not([type])") && [focus.selectionStart, focus.selectionEnd];
    const before = places(old);
    const kept = given(old);
    const output = old.querySelector(".scroller");
    const top = output && output.scrollTop < -END ? fromTop(output) : null;
    if (old.id === "queue") {
      // The announced line stays the same element, so that screen readers notice that its text has changed.
      const line = old.querySelector("#leader");
      putText(line, next.querySelector("#leader"));
      next.querySelector("#leader").replaceWith(line);
    }
    old.replaceChildren(...next.childNodes);
    giveBack(kept);
    animate(old, before);
    const shown = old.querySelector(".scroller");
    if (shown && top !== null) shown.scrollTop = top - (shown.scrollHeight - shown.clientHeight);
    const links = () => [...old.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === href);
    const same = id ? document.getElementById(id) : href ? links() : focus?.matches(".scroller") ? shown : null;
    same?.focus({ preventScroll: true });
    if (caret && same?.matches("input")) same.setSelectionRange(...caret);
  };

  const put = (text) => {
    const fetched = new DOMParser().parseFromString(text, "text/html");
    title = fetched.title;
    ahead = Number(fetched.getElementById("main").dataset.now) - Date.now();
    for (const next of fetched.querySelectorAll("[data-live]")) {
      const old = document.getElementById(next.id);
      if (old) replace(old, next);
    }
  };

  // Fetches even if the server says that nothing has changed: something was left alone.
  const refetch = () => {
    tag = "";
    soon();
  };

  const fetchPage = async () => {
    if (busy) {
      again = true;
      return;
    }
    [busy, due] = [true, false];
    last = Date.now();
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const signal = AbortSignal.timeout(LATE);
      const answer = await fetch(location.href, { headers, cache: "no-store", credentials: "same-origin", signal });
      if (answer.status === 200) {
        put(await answer.text());
        tag = answer.headers.get("ETag") || "";
      }
      if (answer.ok || answer.status === 304) {
        current();
        count();
      } else {
        heard = Date.now();
        outdated(`${node} refuses to show this page now (${answer.status}).`);
        later();
      }
    } catch {
      outdated(`${node} does not answer.`);
      later();
    }
    busy = false;
    if (again) {
      again = false;
      soon();
    }
  };

  const soon = () => {
    due = true;
    if (document.hidden) return;
    clearTimeout(timer);
    const wait = Math.max(0, last + SHORTEST - Date.now());
    timer = setTimeout(fetchPage, wait);
  };

  // Not all open pages at once: the node serves only so many connections of one host.
  const later = () => setTimeout(soon, 2000 + 3000 * Math.random());

  let events = null;
  let leader = null;
  let state = "";
  const listen = () => {
    events = new EventSource("/v1/events");
    events.addEventListener("status", (event) => {
      const news = JSON.parse(event.data);
      // Who leads is shown without delay.
      if (news.leader !== leader || news.state !== state) last = 0;
      ({ leader, state } = news);
      heard = Date.now();
      soon();
    });
    events.addEventListener("alive", hear);
    events.addEventListener("error", () => {
      // The connection is gone: because the node is, or because each ends after some minutes.
      heard = 0;
      ask();
      // The browser reconnects by itself unless the server has refused.
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, 30000);
    });
  };

  // The zone of the browser is proposed where one can be chosen.
  const zone = document.querySelector("[data-zone]");
  if (zone && !zone.value) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";

  document.addEventListener("input", () => {
    typedAt = Date.now();
  });
  document.addEventListener("visibilitychange", () => {
    count();
    soon();
  });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) soon();
  });
  setInterval(ask, 1000);
  setInterval(count, 1000);
  // Output changes without an event while its run is in flight.
  setInterval(() => {
    if (document.querySelector("[data-following]")) soon();
  }, SHORTEST);
  setInterval(() => {
    if (!events || events.readyState !== EventSource.OPEN) soon();
  }, FALLBACK);
  listen();
})();
