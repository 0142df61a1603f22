/** What may move: numbers ease to their value, rows glide to their rank. Nothing for those who want it still. */

import { grouped } from "./words";

export const EASE_MS = 300;

export function isStill(): boolean {
  return document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** `<eased-number value="12" digits="0">`: a figure that reaches a new value within 300 ms. Its first text is the site's. */
export class EasedNumber extends HTMLElement {
  static readonly observedAttributes = ["value"];
  private shown: number | null = null;
  private frame = 0;

  attributeChangedCallback(_: string, before: string | null, now: string | null): void {
    const goal = Number(now);
    cancelAnimationFrame(this.frame);
    if (before === null) {
      this.shown = goal;
      return;
    }
    const from = this.shown ?? goal;
    if (from === goal || isStill()) {
      this.write(goal);
      return;
    }
    const began = performance.now();
    const step = (at: number): void => {
      const part = Math.min(1, Math.max(0, (at - began) / EASE_MS));
      this.write(part === 1 ? goal : from + (goal - from) * (1 - (1 - part) ** 3));
      if (part < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  private write(value: number): void {
    this.shown = value;
    const digits = Number(this.getAttribute("digits") ?? 0);
    this.textContent = digits ? value.toFixed(digits) : grouped(value);
  }
}

customElements.define("eased-number", EasedNumber);

/** Run `change`, then let the rows with a `data-key` glide from where they stood. */
export function gliding(rows: () => Iterable<HTMLElement>, change: () => void): void {
  const before = new Map([...rows()].map((row) => [row.dataset["key"], row.getBoundingClientRect().top]));
  change();
  if (isStill()) return;
  for (const row of rows()) {
    const from = before.get(row.dataset["key"]);
    const distance = from === undefined ? 0 : from - row.getBoundingClientRect().top;
    if (distance) row.animate({ transform: [`translateY(${distance}px)`, "none"] }, { duration: EASE_MS, easing: "ease-out" });
  }
}
