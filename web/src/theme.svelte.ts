// Light, dark, or whatever the system says. The choice is remembered in this browser.

export type Theme = "system" | "light" | "dark";

const KEY = "instep.theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function remembered(): Theme {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

/** `version` changes when colours do: charts are drawn on canvases, which style sheets do not reach. */
export const theme = $state({ chosen: remembered(), version: 0 });

/** Makes the chosen theme the document's. */
export function applyTheme(): void {
  const shown = theme.chosen === "system" ? (dark.matches ? "dark" : "light") : theme.chosen;
  document.documentElement.dataset["theme"] = shown;
  theme.version += 1;
}

/** Goes on to the next of the three. */
export function nextTheme(): void {
  const order: Theme[] = ["system", "light", "dark"];
  theme.chosen = order[(order.indexOf(theme.chosen) + 1) % order.length] ?? "system";
  localStorage.setItem(KEY, theme.chosen);
  applyTheme();
}

dark.addEventListener("change", applyTheme);
