// Keeps an open page up to date. Without it the page works too: the server renders all of it.
//
// The server says over `/v1/events` that something has changed. The script then fetches the same page and puts in the
// sections that differ. It never makes HTML from text of its own, and never runs what it fetches.
"use strict";

(() => {
  const live = document.getElementById("live");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const SHORTEST = 1000; // ms between two fetches
  const FALLBACK = 10000; // ms between two fetches without events
  let tag = "";
  let timer = 0;
  let last = 0;
  let busy = false;
  let again = false;

  const say = (text) => {
    if (live.textContent !== text) live.textContent = text;
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

  // A section in which somebody types or has opened something is left alone.
  const inUse = (section) => {
    const focused = document.activeElement;
    const types = focused && section.contains(focused) && focused.matches("input, select");
    return types || section.querySelector("details[open]") !== null;
  };

  const putText = (old, next) => {
    if (old && next && old.textContent !== next.textContent) old.replaceChildren(...next.childNodes);
  };

  const replace = (old, next) => {
    if (old.isEqualNode(next) || inUse(old)) return;
    const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
    const before = places(old);
    const output = old.querySelector("pre");
    const atEnd = output && output.scrollTop + output.clientHeight >= output.scrollHeight - 4;
    if (old.id === "queue") {
      // The announced line stays the same element, so that screen readers notice that its text has changed.
      const line = old.querySelector("#leader");
      putText(line, next.querySelector("#leader"));
      next.querySelector("#leader").replaceWith(line);
    }
    old.replaceChildren(...next.childNodes);
    animate(old, before);
    const shown = old.querySelector("pre");
    if (shown && atEnd) shown.scrollTop = shown.scrollHeight;
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  };

  const put = (text) => {
    const fetched = new DOMParser().parseFromString(text, "text/html");
    for (const next of fetched.querySelectorAll("[data-live]")) {
      const old = document.getElementById(next.id);
      if (old) replace(old, next);
    }
  };

  const fetchPage = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    last = Date.now();
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", credentials: "same-origin" });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") || "";
        put(await answer.text());
      }
      say(answer.ok || answer.status === 304 ? "This page is up to date." : "The node refuses to show this page now.");
      if (!answer.ok && answer.status !== 304) later();
    } catch {
      say("The node does not answer; what is shown may be old.");
      later();
    }
    busy = false;
    if (again) {
      again = false;
      soon();
    }
  };

  const soon = () => {
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
      const told = JSON.parse(event.data);
      // Who leads is shown without delay.
      if (told.leader !== leader || told.state !== state) last = 0;
      ({ leader, state } = told);
      soon();
    });
    events.addEventListener("error", () => {
      // The browser reconnects by itself unless the server has refused.
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, 30000);
    });
  };

  document.addEventListener("visibilitychange", soon);
  // Output changes without an event while its run is in flight.
  setInterval(() => {
    if (document.querySelector("[data-following]")) soon();
  }, SHORTEST);
  setInterval(() => {
    if (!events || events.readyState !== EventSource.OPEN) soon();
  }, FALLBACK);
  listen();
})();
