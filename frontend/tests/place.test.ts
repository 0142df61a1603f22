/** The reader's own line and bars: asked for only where they are needed, and not too often. */

import { beforeEach, describe, expect, it } from "vitest";

import golden from "../../tests/golden/feed.json";
import type { Bar, Picture } from "../src/picture";
import { ASK_MS, GROW_MS, type Own, Place, machinesWithoutBar, withOwn } from "../src/place";

const two = golden.steps[0]?.before as unknown as Picture; // Amina and Teo
const crowd: Picture = { ...two, people: 5000 };
const many: Picture = { ...two, training: 667 };
const words = "you: 14th, 212 samples short of 13th";
const bar: Bar = { key: "n1", name: "Noor", tint: 1, state: "ready", done: 6, share: 12.5 };
const vectors = golden.own_bars as unknown as { why: string; picture: Picture; own: Bar[]; shown: string[]; without_bar: number }[];

let asked: number;
let shown: number;
let clock: number;
let answer: () => Promise<Own>;

const place = (me: string, you = "", bars: readonly Bar[] = []) =>
  new Place(me, { you, bars }, () => (asked++, answer()), () => clock, () => void shown++);
const keys = (picture: Picture) => picture.bars.map((row) => row.key);

beforeEach(() => {
  [asked, shown, clock] = [0, 0, 0];
  answer = async () => ({ you: words, bars: [bar] });
});

it.each([
  ["", crowd, "nobody is logged in"],
  ["", many, "nobody is logged in, to a crowd of machines"],
  ["Teo", crowd, "the reader has a row"],
  ["Noor", two, "all who gave something have a row, and all machines a bar"],
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

describe("the reader's own bars", () => {
  it.each(vectors.map((vector) => [vector.why, vector] as const))("%s", (_, vector) => {
    const found = withOwn(vector.picture, vector.own);
    expect(keys(found)).toEqual(vector.shown);
    expect(machinesWithoutBar(found)).toBe(vector.without_bar);
    expect(found.bars.slice(0, vector.picture.bars.length)).toEqual(vector.picture.bars);
    expect({ ...found, bars: [] }).toEqual({ ...vector.picture, bars: [] });
  });

  it("are there as the page came, and as they are since", async () => {
    const own = place("Noor", "", [{ ...bar, key: "n0" }]);
    expect(keys(own.with(many))).toEqual([...keys(many), "n0"]);
    own.look(many);
    await Promise.resolve();
    expect([keys(own.with(many)), shown]).toEqual([[...keys(many), "n1"], 1]);
  });

  it("are asked for while they grow, also within a step", async () => {
    const own = place("Noor");
    own.look(many);
    await Promise.resolve();
    clock = GROW_MS - 1;
    own.look({ ...many, done: 3 });
    expect(asked).toBe(1);
    clock = GROW_MS;
    own.look({ ...many, done: 4 });
    expect(asked).toBe(2);
  });

  it("are not asked for within a step where there are none below", async () => {
    answer = async () => ({ you: "", bars: [] });
    const own = place("Noor");
    own.look(many);
    await Promise.resolve();
    clock = 9 * GROW_MS;
    own.look({ ...many, done: 4 });
    own.look({ ...many, done: 5 });
    expect(asked).toBe(1);
  });
});
