/** The button with which a reader lets this browser show notices. */

import { say } from "../words";

const WORDS = {
  none: () => say("This browser cannot show notifications from pages. Use e-mail or a webhook instead."),
  insecure: () => say("Browsers only show notifications from https:// pages."),
  denied: () => say("This browser blocks notifications from this site. You can allow them in its settings for this site."),
  granted: () => say("Notifications are on in this browser."),
};

/** Fill the place that the settings page has for it. */
export function offerPermission(place: HTMLElement, start: () => void): void {
  if (!("Notification" in window)) return tell(place, isSecureContext ? WORDS.none() : WORDS.insecure());
  if (!isSecureContext) return tell(place, WORDS.insecure());
  if (Notification.permission !== "default") return tell(place, WORDS[Notification.permission]());
  const button = document.createElement("button");
  button.type = "button";
  button.className = "second";
  button.textContent = say("Allow in this browser");
  button.addEventListener("click", async () => {
    const permission = await Notification.requestPermission();
    if (permission === "default") return;
    tell(place, WORDS[permission === "granted" && !works() ? "none" : permission]());
    start();
  });
  place.replaceChildren(button);
}

/** Browsers of phones have the name and refuse to show anything by it. */
function works(): boolean {
  try {
    new Notification("Manyhands", { body: say("Notifications will look like this."), tag: "manyhands-works" });
    return true;
  } catch {
    return false;
  }
}

function tell(place: HTMLElement, text: string): void {
  const words = document.createElement("p");
  words.className = "quiet";
  words.setAttribute("role", "status");
  words.textContent = text;
  place.replaceChildren(words);
}
