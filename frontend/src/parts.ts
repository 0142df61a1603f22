/**
 * Parts of a page that are replaced while a reader looks at it: the elements whose id begins with "part-". Their HTML
 * comes from the site, by the feed or by a request. What the reader has opened, typed, marked or focused stays.
 */

import { Idiomorph } from "idiomorph";

import { EasedNumber, gliding } from "./motion";
import { localize } from "./start";
import { clock, moment, say } from "./words";

const PART = "part-";

/** What a reader sees of a page that is rendered for all: their own rows, their time zone, the panels they have chosen. */
export function prepare(root: ParentNode, me: string): void {
  for (const row of root.querySelectorAll<HTMLElement>("[data-key]"))
    row.id ||= `row-${row.closest(`[id^=${PART}]`)?.id ?? ""}-${encodeURIComponent(row.dataset["key"] ?? "")}`;
  for (const row of root.querySelectorAll<HTMLElement>("[data-person]")) row.classList.toggle("mine", row.dataset["person"] === me);
  for (const time of root.querySelectorAll<HTMLTimeElement>(".timeline time, time.clock")) {
    const at = new Date(time.dateTime);
    [time.textContent, time.title] = [clock(at), moment(at)];
  }
  localize(root);
  for (const note of root.querySelectorAll("[data-utc]")) note.textContent = say("Times are in your time zone.");
  const choices = [...root.querySelectorAll<HTMLElement>("[data-tab], [data-panel]")].map(({ dataset }) => dataset["tab"] ?? dataset["panel"]);
  for (const name of new Set(choices.map((choice = "") => choice.split("=")[0] ?? ""))) applyChoice(root, name);
  addCopyButtons(root);
}

const waiting = new Map<string, Element>();

/** Replace a part with what the site has rendered. A part of which the reader has marked some text waits. */
export function showPart(fresh: Element, me: string): void {
  const shown = document.getElementById(fresh.id);
  if (!shown) return;
  if (isMarked(shown)) {
    waiting.set(fresh.id, fresh);
    return;
  }
  prepare(fresh, me);
  gliding(() => shown.querySelectorAll<HTMLElement>("[data-key]"), () => morph(shown, fresh));
}

/** The element that some HTML consists of. */
export function elementOf(html: string): Element | null {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

/** Request a page, or some of its parts, and show all parts that came. Return what came. */
export async function renew(address: string, me: string): Promise<Document> {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(10_000) });
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const parts = [...page.querySelectorAll(`[id^=${PART}]`)];
  for (const part of parts) if (!document.getElementById(part.id)?.hasAttribute("data-keep")) showPart(part, me);
  return page;
}

function morph(shown: Element, fresh: Element): void {
  Idiomorph.morph(shown, fresh, {
    morphStyle: "outerHTML",
    callbacks: {
      beforeNodeMorphed: (old, now) => {
        if (!(old instanceof Element)) return true;
        if (old !== shown && old.id.startsWith(PART)) return false; // a part of its own
        if (isTyped(old)) return false;
        if (!(old instanceof EasedNumber)) return true;
        old.setAttribute("value", (now as Element).getAttribute("value") ?? "");
        return false;
      },
      beforeAttributeUpdated: (name, element) => name !== "open" || !(element instanceof HTMLDetailsElement),
    },
  });
}

function isTyped(element: Element): boolean {
  if (element instanceof HTMLInputElement && element.type !== "hidden")
    return element.value !== element.defaultValue || element.checked !== element.defaultChecked;
  return element instanceof HTMLTextAreaElement && element.value !== element.defaultValue;
}

function isMarked(part: Element): boolean {
  const marked = getSelection();
  return marked !== null && !marked.isCollapsed && marked.rangeCount > 0 && marked.getRangeAt(0).intersectsNode(part);
}

/** Show the parts that waited, once the reader has nothing marked any more. */
export function showWaiting(me: string): void {
  if (!getSelection()?.isCollapsed) return;
  const parts = [...waiting.values()];
  waiting.clear();
  for (const part of parts) showPart(part, me);
}

// Panels of which one is shown: links with data-tab="name=value" choose among elements with data-panel="name=value".

const chosen = new Map<string, string>();
let whenChosen: (name: string) => void = () => undefined;

/** What the reader has chosen, by a link or by the page's address; empty for nothing. */
export function choice(name: string): string {
  const value = chosen.get(name) ?? new URLSearchParams(location.search).get(name) ?? "";
  return document.querySelector(`[data-tab="${CSS.escape(name)}=${CSS.escape(value)}"]`) ? value : "";
}

/** Make the tabs of the page work without a reload; call `told` with the name of each choice. */
export function followTabs(told: (name: string) => void): void {
  whenChosen = told;
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest<HTMLElement>("a[data-tab]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const [name = "", value = ""] = (link.dataset["tab"] ?? "").split("=");
    chosen.set(name, value);
    const query = new URLSearchParams(location.search);
    query.set(name, value);
    history.replaceState(null, "", `?${query}`);
    applyChoice(document, name);
    whenChosen(name);
  });
}

function applyChoice(root: ParentNode, name: string): void {
  const value = chosen.get(name) ?? new URLSearchParams(location.search).get(name);
  const wanted = `${name}=${value}`;
  if (!value || ![root, document].some((place) => place.querySelector(`[data-tab="${CSS.escape(name)}=${CSS.escape(value)}"]`))) return;
  for (const panel of root.querySelectorAll<HTMLElement>(`[data-panel^="${CSS.escape(name)}="]`))
    panel.toggleAttribute("hidden", panel.dataset["panel"] !== wanted);
  for (const tab of root.querySelectorAll<HTMLElement>(`nav [data-tab^="${CSS.escape(name)}="]`)) {
    if (tab.dataset["tab"] === wanted) tab.setAttribute("aria-current", "true");
    else tab.removeAttribute("aria-current");
  }
}

// A copy button for every piece of code

function addCopyButtons(root: ParentNode): void {
  for (const code of root.querySelectorAll<HTMLElement>("pre:not(.copyrow > pre)")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = code.matches(".stage .mine-card > pre, [aria-labelledby=uv] > pre, pre.first") ? "main copy" : "second copy";
    button.textContent = code.dataset["copy"] ?? (button.classList.contains("main") ? say("Copy command") : say("Copy"));
    const row = document.createElement("div");
    row.className = "copyrow";
    if (!code.matches(".long")) breakAddresses(code);
    code.replaceWith(row);
    row.append(code, button);
  }
}

/** Let a long address break after a slash and before its digest, rather than within a word. */
function breakAddresses(element: Element): void {
  for (const node of [...element.childNodes]) {
    if (node instanceof Element) breakAddresses(node);
    else {
      const parts = (node.textContent ?? "").match(/#?(?:[^/#]|\/\/)+\/?|./gs) ?? [];
      (node as Text).replaceWith(...parts.flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part])));
    }
  }
}

/** Let the copy buttons of the page work, also those of parts that come later. */
export function followCopyButtons(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("button.copy");
    const code = button?.parentElement?.querySelector("pre");
    if (button && code) void copied(code, button);
  });
}

async function copied(code: HTMLElement, button: HTMLElement): Promise<void> {
  const works = await write(code);
  const name = button.dataset["name"] ??= button.textContent;
  button.textContent = works ? say("Copied") : say("Select and copy it yourself");
  setTimeout(() => (button.textContent = name), 2000);
}

async function write(code: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
    return true;
  } catch {
    // On a plain address in a classroom there is no clipboard to write to; the text is marked for the keyboard.
    getSelection()?.selectAllChildren(code);
    return false;
  }
}
