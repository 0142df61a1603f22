/** The button with which a reader lets this browser show notices. */

const WORDS = {
  none: "This browser shows no notifications from a page. Use e-mail or a webhook instead.",
  insecure: "Browsers show notifications only from pages with an https:// address.",
  denied: "This browser blocks notifications from this site. You can allow them in its settings for this site.",
  granted: "This browser shows them.",
};

/** Fill the place that the settings page has for it. */
export function offerPermission(place: HTMLElement, start: () => void): void {
  if (!("Notification" in window)) return say(place, isSecureContext ? WORDS.none : WORDS.insecure);
  if (!isSecureContext) return say(place, WORDS.insecure);
  if (Notification.permission !== "default") return say(place, WORDS[Notification.permission]);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "second";
  button.textContent = "Allow in this browser";
  button.addEventListener("click", async () => {
    const permission = await Notification.requestPermission();
    if (permission === "default") return;
    say(place, WORDS[permission === "granted" && !works() ? "none" : permission]);
    start();
  });
  place.replaceChildren(button);
}

/** Browsers of phones have the name and refuse to show anything by it. */
function works(): boolean {
  try {
    new Notification("Manyhands", { body: "Notifications are shown like this.", tag: "manyhands-works" });
    return true;
  } catch {
    return false;
  }
}

function say(place: HTMLElement, text: string): void {
  const words = document.createElement("p");
  words.className = "quiet";
  words.setAttribute("role", "status");
  words.textContent = text;
  place.replaceChildren(words);
}
