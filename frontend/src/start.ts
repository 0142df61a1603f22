/** When a run starts: in the reader's time zone, with the time that is left, and in fields, which the site reads as UTC. */

import { language, say, startMoment } from "./words";

const HOUR_S = 3600;
const LONG_S = 24 * HOUR_S;

/** Show times and fields that came from the site in the reader's time zone. */
export function localize(root: ParentNode): void {
  for (const time of root.querySelectorAll<HTMLTimeElement>("time[data-start]")) time.textContent = startMoment(new Date(time.dateTime));
  for (const field of root.querySelectorAll<HTMLInputElement>("input[data-local]")) field.defaultValue = localOf(field.defaultValue);
  countDown(root);
}

/** Count down every second, and send the site UTC. */
export function followStarts(): void {
  setInterval(() => countDown(document), 1000);
  document.addEventListener("formdata", (event) => {
    for (const field of (event.target as HTMLFormElement).querySelectorAll<HTMLInputElement>("input[data-local]"))
      event.formData.set(field.name, utcOf(field.value));
  });
}

function countDown(root: ParentNode): void {
  for (const left of root.querySelectorAll("[data-left]")) {
    const time = left.parentElement?.querySelector<HTMLTimeElement>("time[data-start]");
    if (!time) continue;
    const parts = leftText((Date.parse(time.dateTime) - Date.now()) / 1000).split(/([\d:]+)/);
    left.replaceChildren(...parts.map((part, place) => (place % 2 ? figure(part) : part)));
  }
}

/** The part of the time left that stands out. */
function figure(text: string): HTMLElement {
  const element = document.createElement("b");
  element.textContent = text;
  return element;
}

/** “in 3 days”, “in 5:12:40”, “in 4:05”, “now”. */
export function leftText(seconds: number): string {
  if (seconds <= 0) return say("now");
  if (seconds >= LONG_S) return new Intl.RelativeTimeFormat(`${language}-u-nu-latn`).format(Math.round(seconds / 24 / HOUR_S), "day");
  const whole = Math.ceil(seconds);
  const parts = [Math.floor((whole % HOUR_S) / 60), whole % 60];
  const hours = Math.floor(whole / HOUR_S);
  if (hours) parts.unshift(hours);
  return say("in {time}", { time: parts.map((part, place) => (place ? String(part).padStart(2, "0") : part)).join(":") });
}

/** The local time of a UTC time, both as `2026-12-05T18:00`. Anything else stays. */
export function localOf(utc: string): string {
  const at = new Date(`${utc}Z`);
  return Number.isNaN(at.getTime()) ? utc : new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function utcOf(local: string): string {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? local : at.toISOString().slice(0, 16);
}
