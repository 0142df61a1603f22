/** The sign-up form of a site that asks for a proof of work: the browser looks for a number before it sends the form. */

import { sha256 } from "@noble/hashes/sha2.js";

const AT_ONCE = 2000; // hashes between two pauses, so that the page stays usable

/** How many zero bits a digest begins with. */
export function zeroBits(digest: Uint8Array): number {
  const place = digest.findIndex((byte) => byte > 0);
  return place < 0 ? 8 * digest.length : 8 * place + Math.clz32(digest[place]!) - 24;
}

/** The first number for which SHA-256 of `text:number` begins with this many zero bits. */
export async function answerTo(text: string, bits: number): Promise<number> {
  const encoder = new TextEncoder();
  for (let number = 0; ; number++) {
    if (zeroBits(sha256(encoder.encode(`${text}:${number}`))) >= bits) return number;
    if (number % AT_ONCE === AT_ONCE - 1) await new Promise((resolve) => setTimeout(resolve));
  }
}

const form = typeof document === "undefined" ? null : document.querySelector<HTMLFormElement>("form[data-bits]");
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const button = form.querySelector<HTMLButtonElement>("button.main")!;
  button.disabled = true;
  button.textContent = button.dataset.working ?? button.textContent;
  const text = form.querySelector<HTMLInputElement>("input[name=work]")!.value;
  void answerTo(text, Number(form.dataset.bits)).then((answer) => {
    form.querySelector<HTMLInputElement>("input[name=answer]")!.value = String(answer);
    form.submit();
  });
});
