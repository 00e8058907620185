import type { Savable } from "../lib/save";

export interface MenuItem {
  label: string;
  act: () => void;
  key?: string;
  /** A line above it. */
  isApart?: boolean;
}

/** The one menu that is open, wherever it was asked for. */
class MenuState {
  items = $state.raw<readonly MenuItem[]>([]);
  x = $state(0);
  y = $state(0);
  title = $state("");

  open(at: { clientX: number; clientY: number }, title: string, items: readonly MenuItem[]): void {
    this.x = at.clientX;
    this.y = at.clientY;
    this.title = title;
    this.items = items;
  }

  close(): void {
    this.items = [];
  }
}

export const menu = new MenuState();

/** What can be done with any plot. The code that does it is loaded when it is used. */
export function saveItems(savable: () => Savable): MenuItem[] {
  const save = () => import("../lib/save");
  return [
    {
      label: "Save as CSV",
      act: () => void save().then((m) => m.saveCsv(savable())),
      isApart: true,
    },
    { label: "Save as PNG", act: () => void save().then((m) => m.savePng(savable())) },
    { label: "Save as SVG", act: () => void save().then((m) => m.saveSvg(savable())) },
  ];
}

export function copyItem(label: string, text: string): MenuItem {
  return { label, act: () => void copy(text) };
}

/** The clipboard is only there on this machine or over HTTPS; elsewhere the old way works. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
