/* tokenizer.h - text to token ids and back; a part of ulysses.h, which includes it.
 *
 * Reads what the published models come with: tokenizer.json, tekken.json, and tokenizer.model of
 * both kinds (tiktoken, SentencePiece). What a file asks for and is not computed exactly is refused
 * by name.
 */
#ifndef UL_TOKENIZER_H
#define UL_TOKENIZER_H

#include <stdint.h>

typedef struct ul_tokenizer ul_tokenizer;

/* Growing lists, of the caller: {0} is an empty one, and it may be filled again and again. */
typedef struct ul_ids {
    int32_t *data;
    int64_t n, room;
    int64_t replaced; /* how many pieces that were no UTF-8 became U+FFFD, since the list was {0} */
} ul_ids;

typedef struct ul_text {
    char *data; /* no zero behind it */
    int64_t n, room;
} ul_text;

void ul_ids_free(ul_ids *ids);
void ul_text_free(ul_text *text);

typedef struct ul_tokenizer_info {
    const char *split;        /* how text is cut before it is merged: "llama3", "tekken", "qwen2",
                                 "gpt2", or "sentencepiece" */
    const char *prepend;      /* whether a space is put before a text: "never", "first" (at the
                                 beginning of a text that begins with none), "pieces" (also
                                 behind each added token), "always" */
    int64_t vocab;            /* the highest id, plus one; some below it may be no tokens */
    int32_t bos, eos;         /* that the file tells; -1 where it does not */
    int32_t unknown, padding; /* likewise */
    const char *hash;         /* of the file, XXH3 */
    int cached;               /* whether it came from the cache */
} ul_tokenizer_info;

/* Refuses (UL_EIO) a file that is wrong, or that asks for what we do not have. cache: a folder for
 * what a large file was made into, or NULL; it is made where it is not there, and where it cannot
 * be written there is just no cache.
 */
int ul_tokenizer_load(ul_tokenizer **out, const char *path, const char *cache);
void ul_tokenizer_free(ul_tokenizer *t); /* NULL is fine */
void ul_tokenizer_about(ul_tokenizer_info *info, const ul_tokenizer *t);
/* Its id, or -1: of an added token, or of the bytes that a token stands for. */
int32_t ul_tokenizer_find(const ul_tokenizer *t, const char *bytes, int64_t n);
/* The bytes of a token, borrowed, and whether it is a special one; NULL where id is no token. */
const char *ul_tokenizer_token(const ul_tokenizer *t, int64_t id, int64_t *n, int *special);

enum {
    UL_TOKENS_SPECIALS = 1, /* names of special tokens in the text stand for these, not for text;
                               in decoding: they are written out */
    UL_TOKENS_BOS = 2,      /* the file's template around it, or BOS; never twice */
    UL_TOKENS_EOS = 4,      /* `eos` behind it, unless it is there */
    UL_TOKENS_STRICT = 8,   /* UL_EVALUE for what is no UTF-8 */
};

/* Adds the tokens of n bytes. bos, eos: what UL_TOKENS_BOS and UL_TOKENS_EOS add where the file has
 * no template; -1: nothing, which is then refused.
 */
int ul_tokenizer_encode(ul_ids *ids, ul_tokenizer *t, const char *text, int64_t n, int flags,
                        int32_t bos, int32_t eos);
/* first[i], in the text that was encoded into ids[0 .. n): where token i begins; first[n]: the
 * end. flags as they were.
 */
int ul_tokenizer_offsets(int64_t *first, const ul_tokenizer *t, const char *text, int64_t bytes,
                         const int32_t *ids, int64_t n, int flags);

/* Adds the text of n tokens; what is no UTF-8 becomes U+FFFD. */
int ul_tokenizer_decode(ul_text *text, const ul_tokenizer *t, const int32_t *ids, int64_t n,
                        int flags);

/* The same, token by token: characters come as soon as they are whole. The same text, but for
 * bytes of SentencePiece that are no UTF-8.
 */
typedef struct ul_decoder {
    const ul_tokenizer *t;
    int flags;
    int begun, held; /* held: bytes of a character that is not whole yet */
    unsigned char bytes[4];
} ul_decoder;

int ul_decoder_push(ul_text *text, ul_decoder *d, int64_t id);
int ul_decoder_end(ul_text *text, ul_decoder *d);

/* ---- a vocabulary of our own ---- */

/* Makes a byte-level BPE: words of texts are counted, then merges are found. */
typedef struct ul_trainer ul_trainer;

/* split: how texts are cut, "llama3", "tekken", "qwen2" or "gpt2"; UL_EVALUE for another name. */
int ul_trainer_new(ul_trainer **out, const char *split);
void ul_trainer_free(ul_trainer *t); /* NULL is fine */
/* Counts the words of n bytes of text; what is no UTF-8 counts as U+FFFD. */
int ul_trainer_add(ul_trainer *t, const char *text, int64_t n);
/* Makes up to so many tokens, the 256 bytes among them; a pair that stands in the texts less than
 * `least` times is not merged. Once.
 */
int ul_trainer_run(ul_trainer *t, int64_t tokens, int64_t least);
/* What came out: tokens by id, borrowed, and pairs of ids in the order of their merges. */
int64_t ul_trainer_tokens(const ul_trainer *t);
const char *ul_trainer_token(const ul_trainer *t, int64_t id, int64_t *n);
const int32_t *ul_trainer_merges(const ul_trainer *t, int64_t *n);

#endif
