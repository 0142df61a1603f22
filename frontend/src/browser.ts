/** The real browser behind the feed. */

import type { Browser, Polled } from "./feed";
import { language } from "./words";

/** Messages come in the page's language, whatever the browser likes best. */
const inLanguage = language === "en" ? "" : `?language=${encodeURIComponent(language)}`;

/** The feed of a run at the site that served the page. */
export function browserOf(slug: string): Browser {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return {
    open: () => new WebSocket(`${scheme}://${location.host}/ws/runs/${slug}/${inLanguage}`),
    poll: (etag) => poll(`/runs/${slug}/feed.json${inLanguage}`, etag),
    random: Math.random,
    isHidden: () => document.hidden,
    isOffline: () => !navigator.onLine,
  };
}

/** Call `wake` whenever the reader, the network or the machine comes back. */
export function onReturn(wake: () => void): void {
  document.addEventListener("visibilitychange", () => document.hidden || wake());
  document.addEventListener("resume", wake); // a page that was frozen
  addEventListener("online", wake);
  addEventListener("pageshow", (event) => event.persisted && wake());
}

async function poll(address: string, etag: string): Promise<Polled> {
  const headers: HeadersInit = etag ? { "If-None-Match": etag } : {};
  const answer = await fetch(address, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
  return { status: answer.status, etag: answer.headers.get("ETag") ?? "", text: await answer.text() };
}
