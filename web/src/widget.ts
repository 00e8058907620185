/** The notebook's side of the page: an anywidget that holds it in a frame of its own, so that neither
 * sees the other's styles and keys, and passes on what they say to each other. */

interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, callback: (...given: never[]) => void): void;
  off(event: string, callback: (...given: never[]) => void): void;
}

type Content = { id?: string; status?: number };

let views = 0;

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  views += 1;
  // One model may be shown in several places, and all of them hear every answer.
  const own = `${Date.now().toString(36)}.${views}:`;
  const frame = document.createElement("iframe");
  frame.title = "Backlight";
  frame.style.cssText = "display:block; width:100%; height:100%; border:0; background:transparent";
  const box = document.createElement("div");
  box.style.cssText = `height:${Number(model.get("height"))}px; min-height:240px; resize:vertical; overflow:hidden; border:1px solid #8886; border-radius:4px`;
  box.append(frame);
  el.append(box);

  let port: MessagePort | null = null;
  const onAnswer = (content: Content, buffers?: unknown[]) => {
    if (!content.id?.startsWith(own)) return;
    const body = bytesOf(buffers?.[0]);
    const id = content.id.slice(own.length);
    if (id === "page") open(new TextDecoder().decode(body));
    else port?.postMessage({ id, status: content.status, body }, [body]);
  };
  const onPlace = () => port?.postMessage({ place: model.get("place") });
  const onSaid = ({ data }: MessageEvent<{ id: string; ask: string } | { place: string }>) => {
    if ("ask" in data) return model.send({ id: own + data.id, ask: data.ask });
    model.set("place", data.place);
    model.save_changes();
  };
  const open = (page: string) => {
    frame.style.colorScheme = isDark() ? "dark" : "light";
    // A notebook that moves an output loads its frame again, which then needs a channel again.
    frame.addEventListener("load", () => {
      const channel = new MessageChannel();
      port?.close();
      port = channel.port1;
      port.onmessage = onSaid;
      frame.contentWindow?.postMessage({ backlight: model.get("place") }, "*", [channel.port2]);
    });
    frame.srcdoc = page;
  };
  model.on("msg:custom", onAnswer);
  model.on("change:place", onPlace);
  model.send({ id: `${own}page`, ask: "" });
  return () => {
    model.off("msg:custom", onAnswer);
    model.off("change:place", onPlace);
    port?.close();
    box.remove();
  };
}

/** Whether the notebook is dark: JupyterLab and VS Code say it of the body, marimo of the page. */
function isDark(): boolean {
  const { body, documentElement } = document;
  const said = body.dataset.jpThemeLight ?? "";
  if (said) return said === "false";
  return [body, documentElement].some(({ classList }) =>
    ["dark", "dark-theme", "vscode-dark"].some((name) => classList.contains(name)),
  );
}

/** A copy of what came with a message: a view in some notebooks, a buffer in others. */
function bytesOf(buffer: unknown): ArrayBuffer {
  if (buffer instanceof ArrayBuffer) return buffer.slice(0);
  if (!ArrayBuffer.isView(buffer)) return new ArrayBuffer(0);
  const { byteOffset, byteLength } = buffer;
  return buffer.buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
}

export default { render };
