/** The places of the page that live, and those that stand until the page is fetched anew. */

import { type RootPart, type TemplateResult, render } from "lit";

const taken = new WeakSet<HTMLElement>();

/** A place that the server has filled and the feed keeps up. Null where the page has none. */
export function place(name: string): HTMLElement | null {
  return document.querySelector<HTMLElement>(`[data-live="${name}"]`);
}

/** Put a view into a place; what the server put there goes with the first one. */
export function fill(name: string, view: TemplateResult | string): RootPart | undefined {
  const element = place(name);
  if (!element) return undefined;
  if (!taken.has(element)) {
    element.replaceChildren();
    taken.add(element);
  }
  return render(view, element);
}

/** Exchange what snapshots write for what they write now, within some seconds: not all of a crowd at once. */
export function renewWritten(slug: string, spreadMs: number): void {
  setTimeout(async () => {
    const part = document.querySelector<HTMLElement>("[data-standing=written]");
    const answer = await fetch(`/runs/${slug}/written/`).catch(() => null);
    if (!part || !answer?.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    part.replaceChildren(...fresh.body.childNodes);
  }, Math.random() * spreadMs);
}

/** Fetch the page and exchange the parts that say what can be done: joining, files, buttons. Not those to be kept. */
export async function renewStanding(): Promise<void> {
  const answer = await fetch(location.pathname, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll<HTMLElement>("[data-standing]:not([data-keep])")) {
    const fresh = page.querySelector(`[data-standing="${part.dataset["standing"]}"]`);
    if (!fresh) continue;
    part.toggleAttribute("data-keep", fresh.hasAttribute("data-keep"));
    part.replaceChildren(...fresh.childNodes);
    part.dispatchEvent(new Event("renewed", { bubbles: true }));
  }
}
