/* What all pages of the report share: escaped text, the head with style sheet and content policy, the foot with the
 * script. */
#include "observe/report_int.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void report_put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '&')
            fputs("&amp;", out);
        else if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c == '\'')
            fputs("&#39;", out);
        else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            fputs("\xef\xbf\xbd", out);
        else
            fputc(c, out);
    }
}

void report_put_word(FILE *out, const char *word)
{
    char *quoted = text_shell_word(word);
    MEMORY_CHECK(quoted != NULL, "no memory to quote a word");
    report_put_text(out, quoted);
    free(quoted);
}

void report_put_head(FILE *out, const char *title, const char *over, const char *body_class)
{
    fprintf(out, "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
                 "content='width=device-width'>\n"
                 "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src "
                 "'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>");
    report_put_text(out, title);
    fprintf(
        out,
        " - ingot</title>\n<style>\n%s</style></head>\n<body class='%s'><main>\n<div class=over>%s</div><h1>",
        (const char *)report_css, body_class, over);
    report_put_text(out, title);
    fprintf(out, "</h1>\n");
}

void report_put_foot(FILE *out)
{
    fprintf(out, "</main>\n<script>\n%s</script></body></html>\n", (const char *)report_js);
}

const char *report_time_text(char buf[64], const char *iso)
{
    struct tm tm = {0};
    const char *end = strptime(iso, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (end == NULL || *end)
        snprintf(buf, 64, "%.63s", iso);
    else
        strftime(buf, 64, "%e %b %Y, %H:%M UTC", &tm);
    return buf + strspn(buf, " ");
}
