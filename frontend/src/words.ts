/** Words, numbers and times as people of the reader's place write them. */

const ENGLISH = "en";

/** The language of the page. */
export const language = (typeof document === "undefined" ? "" : document.documentElement.lang) || ENGLISH;
/** For times: days as in Britain, figures as everywhere on the site. */
const places = language === ENGLISH ? "en-GB" : `${language}-u-nu-latn`;

/** Messages in the page's language, which a page brings along if it is not English. */
type Catalogue = Readonly<Record<string, string>>;
let catalogue: Catalogue | null = null;

function translated(message: string): string | undefined {
  if (language === ENGLISH) return undefined;
  catalogue ??= JSON.parse(document.getElementById("words")?.textContent || "{}") as Catalogue;
  return catalogue[message];
}

type Places = Readonly<Record<string, string | number>>;

/** A message in the page's language, with what belongs into its `{places}`. The message stands in the call as it is. */
export function say(message: string, places: Places = {}): string {
  return filled(translated(message) ?? message, places);
}

function filled(message: string, places: Places): string {
  return message.replace(/\{(\w+)\}/g, (place, name: string) => String(places[name] ?? place));
}

const whole = new Intl.NumberFormat(ENGLISH, { maximumFractionDigits: 0 });

/** 41,210 */
export function grouped(value: number): string {
  return whole.format(value);
}

/** Hours and minutes; with the day where it was not today. */
export function clock(at: Date, now: Date = new Date()): string {
  const time: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (at.toDateString() === now.toDateString()) return at.toLocaleTimeString(places, time);
  return at.toLocaleString(places, { ...time, day: "numeric", month: "short" });
}

/** Under an axis of time with a label every `step` seconds: the time of day, or the day where one begins. */
export function label(at: Date, step: number): string {
  const beginsDay = at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0;
  if (step >= 86_400 || (beginsDay && step >= 600)) return at.toLocaleDateString(places, { day: "numeric", month: "short" });
  const seconds: Intl.DateTimeFormatOptions = step < 60 ? { second: "2-digit" } : {};
  return at.toLocaleTimeString(places, { hour: "2-digit", minute: "2-digit", ...seconds, hourCycle: "h23" });
}

/** Saturday 5 December at 19:00 CET */
export function startMoment(at: Date): string {
  const day: Intl.DateTimeFormatOptions = { weekday: "long", day: "numeric", month: "long" };
  return at.toLocaleString(places, { ...day, hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" });
}

/** Day, time and zone in full. */
export function moment(at: Date): string {
  return at.toLocaleString(places, { dateStyle: "long", timeStyle: "long" });
}
