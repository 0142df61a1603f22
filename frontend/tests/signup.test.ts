/** The proof of work that a sign-up may need. */

import { sha256 } from "@noble/hashes/sha2.js";
import { expect, it } from "vitest";

import { answerTo, zeroBits } from "../src/forms/signup";

it("counts zero bits", () => {
  const bits = [[0x80], [0x01, 0xff], [0, 0x40], [0, 0, 0]].map((bytes) => zeroBits(Uint8Array.from(bytes)));
  expect(bits).toEqual([0, 7, 9, 24]);
});

it("finds a number that the site accepts", async () => {
  const answer = await answerTo("a text", 12);
  const [first, second] = sha256(new TextEncoder().encode(`a text:${answer}`));
  expect([first, second! >> 4]).toEqual([0, 0]);
});
