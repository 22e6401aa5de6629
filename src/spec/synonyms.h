/* Names that other programs use for ingot's keys and options: synonyms.def. */
#ifndef INGOT_SPEC_SYNONYMS_H
#define INGOT_SPEC_SYNONYMS_H

struct synonym { const char *words, *target, *note; };
/* The first row behind `at` (NULL: of all) that has `word`, where A is a and - is _; NULL: no more. */
const struct synonym *synonym_next(const struct synonym *at, const char *word);
/* All rows; behind the last, one whose words are NULL. */
const struct synonym *synonyms_all(void);
#endif
