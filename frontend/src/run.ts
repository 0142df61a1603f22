/** The run page, live. The page is complete before this runs; from then on the feed keeps it up. */

import "./run.css";
import { browserOf, onReturn, ownLinks, ownPlace } from "./browser";
import { Feed } from "./feed";
import { Links } from "./links";
import { place as placeOf, renewStanding, renewWritten } from "./page";
import type { Bar, Picture, Values } from "./picture";
import { Mine, Place } from "./place";
import { showActivity } from "./views/activity";
import { showAveraging, showLinks } from "./views/averaging";
import { showHead, showLink } from "./views/head";
import { showLeaderboard } from "./views/leaderboard";
import { redrawLoss, showLoss } from "./views/loss";
import { showStep } from "./views/step";

const WRITTEN_MS = 10_000;

function begin(root: HTMLElement): void {
  const me = root.dataset["me"] ?? "";
  const slug = root.dataset["slug"] ?? "";
  const reader = placeOf("links") ? me : ""; // the organizer's own page has none
  const own = { you: root.dataset["you"] ?? "", bars: JSON.parse(root.dataset["bars"] || "[]") as Bar[] };
  const place = new Place(reader, own, () => ownPlace(slug), () => performance.now(), showPlace);
  const links = new Links(reader, root.dataset["links"] === "yes", () => ownLinks(slug), () => performance.now(), showOwnLinks);
  const standingOn = (root.dataset["standingOn"] ?? "").split(" ") as (keyof Values)[];
  let standing = root.dataset["standingAs"] ?? "";
  const mine = new Mine(me, () => document.querySelector<HTMLElement>(".mine-now"));
  let latest: Picture | null = null;
  let written = document.querySelector<HTMLElement>("[data-written]")?.dataset["written"] ?? null; // none on its organizer's page

  function showPlace(): void {
    if (!latest) return;
    showStep(place.with(latest));
    showLeaderboard(latest, me, place.words(latest));
  }

  function showOwnLinks(): void {
    if (latest && links.known) showLinks(latest, links.known);
  }

  function show(picture: Picture): void {
    showHead(picture);
    showLoss(picture);
    latest = picture;
    place.look(picture);
    showPlace();
    showActivity(picture);
    showAveraging(picture);
    links.look(place.with(picture));
    showOwnLinks();
    if (written !== null && picture.written !== written) {
      written = picture.written;
      renewWritten(slug, WRITTEN_MS);
    }
    const now = standingOn.map((name) => picture[name]).join("|");
    const isRight = mine.look(picture);
    if (now === standing && isRight) return;
    standing = now;
    void renewStanding().catch(() => (standing = ""));
  }

  const feed = new Feed(browserOf(slug), show, showLink);
  onReturn(() => feed.wake());
  addEventListener("offline", () => feed.cut());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawLoss);
  feed.start();
}

const root = document.getElementById("live");
if (root) begin(root);
