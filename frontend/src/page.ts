/** The copy and print buttons of a page. With `<meta name="renew-ms">`, the page also requests itself again at that interval. */

import { followCopyButtons, prepare, renew } from "./parts";

const everyMs = Number(document.querySelector<HTMLMetaElement>("meta[name=renew-ms]")?.content ?? 0);

/** Renew the page's parts every so often, spread by a third so that a crowd does not ask all at once. */
async function follow(): Promise<never> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, everyMs * (1 + Math.random() / 3)));
    if (!document.hidden) await renew(location.href, "").catch(() => undefined); // a site that is away is asked again
  }
}

followCopyButtons();
for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => print());
}
if (!document.getElementById("live")) prepare(document, "");
if (everyMs) void follow();
