import { expect, test } from "vitest";
import { blocksOf } from "./blocks";

/** The block of each module. */
function grouped(...modules: string[]): Record<string, string> {
  const blockOf = blocksOf(modules);
  return Object.fromEntries(modules.map((module) => [module, blockOf(module)]));
}

test("numbered modules are blocks wherever they are, and what is beside them is its own", () => {
  expect(
    grouped(
      "",
      "transformer",
      "transformer.wte",
      "transformer.h",
      "transformer.h.0.attn.c_attn",
      "transformer.h.0",
      "transformer.h.11.ln_1",
      "transformer.ln_f",
      "lm_head",
    ),
  ).toEqual({
    "": "",
    transformer: "",
    "transformer.wte": "transformer.wte",
    "transformer.h": "",
    "transformer.h.0.attn.c_attn": "transformer.h.0",
    "transformer.h.0": "transformer.h.0",
    "transformer.h.11.ln_1": "transformer.h.11",
    "transformer.ln_f": "transformer.ln_f",
    lm_head: "lm_head",
  });
  expect(
    grouped(
      "bert.embeddings.word",
      "bert.encoder.layer.0.attention.self.query",
      "bert.encoder",
      "bert.pooler.dense",
      "classifier",
    ),
  ).toEqual({
    "bert.embeddings.word": "bert.embeddings",
    "bert.encoder.layer.0.attention.self.query": "bert.encoder.layer.0",
    "bert.encoder": "",
    "bert.pooler.dense": "bert.pooler",
    classifier: "classifier",
  });
});

test("the outermost numbers count", () => {
  expect(
    grouped("conv1", "layer1.0.conv1", "layer1.0.downsample.0", "layer1.norm", "layer2.1.bn", "fc"),
  ).toEqual({
    conv1: "conv1",
    "layer1.0.conv1": "layer1.0",
    "layer1.0.downsample.0": "layer1.0",
    "layer1.norm": "layer1.norm",
    "layer2.1.bn": "layer2.1",
    fc: "fc",
  });
  expect(grouped("0", "1.net.0.fc", "1.net.1.fc", "2.0", "2.1.fc")).toEqual({
    "0": "0",
    "1.net.0.fc": "1",
    "1.net.1.fc": "1",
    "2.0": "2.0",
    "2.1.fc": "2.1",
  });
});

test("a plain network and a small head are as they are", () => {
  expect(grouped("net.0", "net.1", "net.2")).toEqual({
    "net.0": "net.0",
    "net.1": "net.1",
    "net.2": "net.2",
  });
  expect(grouped("stem.conv", "head.mlp.0", "head.mlp.2")).toEqual({
    "stem.conv": "stem",
    "head.mlp.0": "head",
    "head.mlp.2": "head",
  });
});

test("a wrapper around all is none", () => {
  expect(grouped("module", "module.stem.conv", "module.net.0", "module.head")).toEqual({
    module: "",
    "module.stem.conv": "module.stem",
    "module.net.0": "module.net.0",
    "module.head": "module.head",
  });
});
