// What drafters and origins are called on the page.

const NAMES = {
  prediction: "prediction",
  suffix: "suffix",
  shared_suffix: "earlier outputs",
  model: "draft model",
  head: "draft head",
};

export const OWN_ORIGINS = ["recovered", "bonus", "plain"];

/** A drafter by its name, or an origin; one that is not known here keeps its own. */
export function nameOf(name) {
  return NAMES[name] ?? name;
}
