/** What may move: numbers ease to their value, rows glide to their rank. Nothing for those who want it still. */

import { grouped } from "../words";

export const EASE_MS = 300;

export function isStill(): boolean {
  return document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** `<eased-number>`: a figure that reaches a new value within 300 ms. */
export class EasedNumber extends HTMLElement {
  private shown: number | null = null;
  private goal = 0;
  private frame = 0;
  digits = 0;

  set value(goal: number) {
    if (goal === this.goal && this.shown !== null) return;
    cancelAnimationFrame(this.frame);
    const from = this.shown ?? goal;
    this.goal = goal;
    if (from === goal || isStill()) {
      this.write(goal);
      return;
    }
    const began = performance.now();
    const step = (now: number): void => {
      const part = Math.min(1, Math.max(0, (now - began) / EASE_MS));
      this.write(part === 1 ? goal : from + (goal - from) * (1 - (1 - part) ** 3));
      if (part < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  private write(value: number): void {
    this.shown = value;
    this.textContent = this.digits ? value.toFixed(this.digits) : grouped(value);
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
