const KEY = "backlight-theme";
const CHOICES = ["system", "light", "dark"] as const;
export type ThemeChoice = (typeof CHOICES)[number];

/** Light or dark: as the system has it, until somebody chooses. */
class Theme {
  choice = $state<ThemeChoice>(readChoice());
  private systemDark = $state(false);
  readonly dark = $derived(this.choice === "system" ? this.systemDark : this.choice === "dark");

  start(): void {
    const query = matchMedia("(prefers-color-scheme: dark)");
    this.systemDark = query.matches;
    this.apply();
    query.addEventListener("change", (event) => {
      this.systemDark = event.matches;
      this.apply();
    });
  }

  next(): void {
    this.choice = CHOICES[(CHOICES.indexOf(this.choice) + 1) % CHOICES.length]!;
    remember(this.choice);
    this.apply();
  }

  private apply(): void {
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
  }
}

function readChoice(): ThemeChoice {
  try {
    const stored = localStorage.getItem(KEY);
    return CHOICES.find((choice) => choice === stored) ?? "system";
  } catch {
    return "system";
  }
}

/** Storage may be forbidden (a sandboxed frame): the choice then lasts as long as the page. */
function remember(choice: ThemeChoice): void {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    return;
  }
}

export const theme = new Theme();
