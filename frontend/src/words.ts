/** Numbers and times as people of the reader's place write them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 41,210 */
export function grouped(value: number): string {
  return whole.format(value);
}

/** 1st, 2nd, 3rd, 11th. */
export function ordinal(value: number): string {
  const isTeen = [11, 12, 13].includes(value % 100);
  return `${grouped(value)}${isTeen ? "th" : (["th", "st", "nd", "rd"][value % 10] ?? "th")}`;
}

/** Hours and minutes; with the day where it was not today. */
export function clock(at: Date, now: Date = new Date()): string {
  const time: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (at.toDateString() === now.toDateString()) return at.toLocaleTimeString("en-GB", time);
  return at.toLocaleString("en-GB", { ...time, day: "numeric", month: "short" });
}

/** Under an axis of time with a label every `step` seconds: the time of day, or the day where one begins. */
export function label(at: Date, step: number): string {
  const beginsDay = at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0;
  if (step >= 86_400 || (beginsDay && step >= 600)) return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const seconds: Intl.DateTimeFormatOptions = step < 60 ? { second: "2-digit" } : {};
  return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...seconds, hourCycle: "h23" });
}

/** Day, time and zone in full. */
export function moment(at: Date): string {
  return at.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "long" });
}
