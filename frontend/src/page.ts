/**
 * The copy and print buttons of a page, and the list of its sections. With `<meta name="renew-ms">`, the page also
 * requests itself again at that interval.
 */

import { followCopyButtons, prepare, renew } from "./parts";

const everyMs = Number(document.querySelector<HTMLMetaElement>("meta[name=renew-ms]")?.content ?? 0);

/**
 * Renew the page's parts every so often, spread by a third so that a crowd does not ask all at once. Stop once the page
 * no longer asks for it.
 */
async function follow(): Promise<void> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, everyMs * (1 + Math.random() / 3)));
    if (document.hidden) continue;
    const page = await renew(location.href, "").catch(() => null); // a site that is away is asked again
    if (page && !page.querySelector("meta[name=renew-ms]")) return;
  }
}

/** Mark one section in the page's list of sections: the one that crosses the upper fifth of the window, or was chosen. */
function followSections(list: HTMLElement): void {
  const links = new Map<Element, HTMLElement>();
  function mark(section: Element): void {
    for (const each of links.values()) each.removeAttribute("aria-current");
    const link = links.get(section);
    if (!link) return;
    link.setAttribute("aria-current", "true");
    list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
  }
  const observer = new IntersectionObserver(
    (changes) => changes.forEach((change) => change.isIntersecting && mark(change.target)),
    { rootMargin: "-20% 0px -79%" },
  );
  for (const link of list.querySelectorAll<HTMLAnchorElement>("a[href^='#']")) {
    const section = document.getElementById(link.hash.slice(1))?.closest("section, details");
    if (!section) continue;
    links.set(section, link);
    if (links.size === 1) mark(section);
    observer.observe(section);
    link.addEventListener("click", () => setTimeout(() => mark(section), 100)); // the page may be too short to jump so far
  }
  const [first] = links.keys();
  const isAbove = () => first && first.getBoundingClientRect().top > innerHeight / 5;
  addEventListener("scroll", () => first && isAbove() && mark(first), { passive: true }); // a jump crosses no section
}

followCopyButtons();
document.querySelectorAll<HTMLElement>("nav[data-sections]").forEach(followSections);
for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => print());
}
if (!document.getElementById("live")) prepare(document, "");
if (everyMs) void follow();
