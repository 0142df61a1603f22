/** The run page, live. The page is complete before this runs; from then on the feed keeps its parts up to date. */

import "./run.css";
import { browserOf, onReturn } from "./browser";
import { type Chart, draw, redraw, showChart } from "./chart";
import { Feed, type Link, type Message, POLL_MS } from "./feed";
import { Own } from "./own";
import { elementOf, followTabs, prepare, renew, showPart, showWaiting } from "./parts";
import { followStarts } from "./start";
import { say } from "./words";

const SPREAD_MS = 3_000; // a crowd does not request the whole page at once

function begin(root: HTMLElement): void {
  const me = root.dataset["me"] ?? "";
  const address = root.dataset["own"] ?? "";
  let standing = root.dataset["standing"] ?? "";
  const isSeen = () => me !== "" && document.querySelector(`#part-step [data-person="${CSS.escape(me)}"]`) !== null;
  const takesPart = () => document.querySelector("#part-mine[data-follow]") !== null;
  const own = address ? new Own(() => renew(address, me), () => performance.now(), takesPart, isSeen) : null;

  function show(message: Message): void {
    for (const html of Object.values(message.parts)) {
      const fresh = elementOf(html);
      if (fresh) showPart(fresh, me);
    }
    if (message.chart) showChart(message.chart as Chart);
    else draw(); // in grey once the run is stuck
    own?.look();
    if (message.standing === standing) return;
    standing = message.standing;
    const again = () => renew(location.href, me).then(redraw, () => (standing = ""));
    setTimeout(() => void again(), Math.random() * SPREAD_MS);
  }

  prepare(document, me);
  followTabs(redraw);
  const feed = new Feed(browserOf(root.dataset["slug"] ?? ""), show, showLink);
  onReturn(() => feed.wake());
  addEventListener("offline", () => feed.cut());
  document.addEventListener("selectionchange", () => showWaiting(me));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  followStarts();
  feed.start();
}

/** How the page is kept up to date; silent while all is well. */
function showLink(link: Link): void {
  const element = document.getElementById("part-link");
  if (element) element.textContent = told(link);
  document.documentElement.dataset["feed"] = link;
}

function told(link: Link): string {
  switch (link) {
    case "live":
      return "";
    case "polling":
      return say("· updated every {seconds} s, since live connections do not get through here", { seconds: POLL_MS / 1000 });
    case "offline":
      return say("· you are offline; showing the last known state");
    case "away":
      return say("· the site does not answer; showing the last known state, retrying");
    case "gone":
      return say("· this run is no longer visible");
  }
}

const root = document.getElementById("live");
if (root) begin(root);
