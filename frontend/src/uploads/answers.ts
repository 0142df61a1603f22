/** What the site's answers to an upload mean, and the words for it. Pure. */

import { say } from "../words";

const WAITS_S = [1, 2, 4, 8, 15]; // before the site is asked again
const goesOn = () => say("The upload will then resume automatically.");
export const AWAY = say("The site does not answer. The upload will resume automatically; nothing is lost.");
export const UNREADABLE = say("The file can no longer be read; it may have changed or moved. Choose it again.");

/** An answer of the site, or that there was none. `retryAfter` as the header has it. */
export interface Answer {
  readonly status: number;
  readonly body: string;
  readonly retryAfter: string;
}

/** Why an upload waits; without words where nobody needs to know. */
export interface Wait {
  readonly words: string;
  readonly wait_s: number;
}

/** How long and why an answer has to be waited for, null where it is one. `attempt`: how many brought nothing before. */
export function waitFor({ status, body, retryAfter }: Answer, attempt: number): Wait | null {
  const wait_s = WAITS_S[Math.min(attempt, WAITS_S.length - 1)] ?? 1;
  if (status === 409) return { words: "", wait_s }; // the site is elsewhere in the text, and will say where
  if (status === 429 || status === 507) {
    const fault = faultOf(body); // too often, or no room: the site says so
    return { words: fault ? `${fault.text} ${goesOn()}` : AWAY, wait_s: Number(retryAfter) || wait_s };
  }
  return status >= 500 || status === 0 ? { words: AWAY, wait_s } : null;
}

/** Why the site does not take a text. */
export function refusal({ status, body }: Answer): string {
  const unknown = { code: status, title: say("Upload not accepted"), text: say("Reload the page and try again.") };
  const { code, title, text } = faultOf(body) ?? unknown;
  return `${title} (${code}). ${text}`;
}

function faultOf(body: string): { code: string; title: string; text: string } | null {
  try {
    const said: unknown = JSON.parse(body);
    const isFault = typeof said === "object" && said !== null && "code" in said && "title" in said && "text" in said;
    return isFault ? { code: String(said.code), title: String(said.title), text: String(said.text) } : null;
  } catch {
    return null;
  }
}

/** What is wrong with a file before a byte of it is sent; empty where nothing is. Sizes in bytes; words of the site. */
export function fileFault(size: number, limit: number, words: { empty: string; tooLong: string }): string {
  if (size === 0) return words.empty;
  return size <= limit ? "" : words.tooLong.replace("SIZE", Math.ceil(size / 1_000_000).toLocaleString("en"));
}

/** 12 kB, 3.4 MB, with a no-break space; `in_bytes` in `platform/web/words.py` writes the same. */
export function megabytes(bytes: number): string {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(1)}\u00a0GB`;
  return bytes < 1e6 ? `${Math.ceil(bytes / 1000)}\u00a0kB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)}\u00a0MB`;
}

/** The name of an upload, which its address ends with. */
export function uploadId(address: string): string {
  return new URL(address).pathname.split("/").filter(Boolean).at(-1) ?? "";
}
