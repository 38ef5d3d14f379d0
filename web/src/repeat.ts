// Asking again and again, politely: one question at a time, and none while nobody looks at the page.

/**
 * Calls `ask` after `first` milliseconds and then `pause` milliseconds after each answer, while the page is visible.
 * What it returns ends it, and the question that is under way.
 */
export function every(pause: number, ask: (signal: AbortSignal) => Promise<void>, first = 0): () => void {
  const control = new AbortController();
  let timer: number | undefined;
  let waiting = false;

  async function turn(): Promise<void> {
    if (document.hidden) {
      waiting = true;
      return;
    }
    await ask(control.signal);
    if (!control.signal.aborted) timer = window.setTimeout(turn, pause);
  }

  function seen(): void {
    if (!document.hidden && waiting) {
      waiting = false;
      void turn();
    }
  }

  document.addEventListener("visibilitychange", seen);
  timer = window.setTimeout(turn, first);
  return () => {
    control.abort();
    window.clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}
