/* Search: a guide before the reference. Numbers other than `score` are Sphinx's own. */
var Scorer = {
  score: ([page, , , , score]) => score + (page.startsWith("how-to/") ? 15 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
