/** The sentence about the run, the badge and the bar of steps. */

import { fill, place } from "../page";
import { type Link, POLL_MS } from "../feed";
import type { Picture } from "../picture";
import { say } from "../words";

/** How the page is kept up, where that is to be told. */
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

export function showHead(picture: Picture): void {
  const badge = place("badge");
  if (badge) {
    badge.className = `badge ${picture.word}`;
    badge.textContent = `${picture.label} · ${picture.visibility}`;
  }
  write("sentence", picture.sentence);
  const bar = place("progress");
  if (bar instanceof HTMLProgressElement) [bar.max, bar.value] = [picture.target_steps, picture.step];
  write("under", picture.progress);
}

/** How the page is kept up; silent while all is well. */
export function showLink(link: Link): void {
  fill("link", told(link));
  document.documentElement.dataset["feed"] = link;
}

function write(name: string, text: string): void {
  const element = place(name);
  if (element && element.textContent !== text) element.textContent = text;
}
