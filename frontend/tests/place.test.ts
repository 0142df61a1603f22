/** The reader's own line: asked for only where it is needed, and not too often. */

import { beforeEach, expect, it } from "vitest";

import golden from "../../tests/golden/feed.json";
import type { Picture } from "../src/picture";
import { ASK_MS, Place } from "../src/place";

const two = golden.steps[0]?.before as unknown as Picture; // Amina and Teo
const crowd: Picture = { ...two, people: 5000 };
const words = "you: 14th, 212 samples short of 13th";

let asked: number;
let shown: number;
let clock: number;
let answer: () => Promise<string>;

const place = (me: string, text = "") =>
  new Place(me, text, () => (asked++, answer()), () => clock, () => void shown++);

beforeEach(() => {
  [asked, shown, clock] = [0, 0, 0];
  answer = async () => words;
});

it.each([
  ["", crowd, "nobody is logged in"],
  ["Teo", crowd, "the reader has a row"],
  ["Noor", two, "all who gave something have a row"],
])("asks nothing where %s needs no line", (me, picture) => {
  const line = place(me, words);
  line.look(picture);
  expect([asked, line.words(picture)]).toEqual([0, ""]);
});

it("shows what the server said until it says something else", async () => {
  const line = place("Noor", "you: 15th");
  line.look(crowd);
  expect(line.words(crowd)).toBe("you: 15th");
  await Promise.resolve();
  expect([line.words(crowd), shown]).toEqual([words, 1]);
});

it("asks once for a step, and not sooner than after five seconds", () => {
  const line = place("Noor");
  line.look(crowd);
  line.look({ ...crowd, done: 3 });
  clock = ASK_MS - 1;
  line.look({ ...crowd, step: 3 });
  expect(asked).toBe(1);
  clock = ASK_MS;
  line.look({ ...crowd, step: 3 });
  clock = 9 * ASK_MS;
  line.look({ ...crowd, step: 3, done: 4 });
  expect(asked).toBe(2);
});

it("asks again where no answer came, and keeps what it had", async () => {
  answer = () => Promise.reject(new Error("no network"));
  const line = place("Noor", "you: 15th");
  line.look(crowd);
  await Promise.resolve().then(() => Promise.resolve());
  clock = ASK_MS;
  line.look(crowd);
  expect([asked, line.words(crowd)]).toEqual([2, "you: 15th"]);
});
