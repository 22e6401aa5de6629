/* "Alerts" of the report: what RUN/alerts.jsonl says. */
#include "base/text.h"
#include "observe/alert.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* Two rows, so that no column is narrow on a phone. */
static void put_alert(FILE *out, const struct alert *a)
{
    char stamp[32] = "", cost[32];
    const time_t seconds = (time_t)a->time;
    struct tm tm;
    if (isfinite(a->time) && gmtime_r(&seconds, &tm)) strftime(stamp, sizeof stamp, "%d %b %H:%M UTC", &tm);
    fprintf(out, "<tr class=head><td>%s<td>", stamp);
    report_put_text(out, a->name);
    fprintf(out, "<td>");
    report_put_text(out, a->where);
    fprintf(out, "<td class=n>");
    if (isfinite(a->seconds)) fprintf(out, "%s", text_time(cost, a->seconds));
    fprintf(out, "<tr><td colspan=4>");
    report_put_text(out, a->text);
    fprintf(out, "\n");
}

void report_put_alerts(FILE *out, const struct report_data *d)
{
    struct alert_list *l = calloc(1, sizeof *l);
    if (l && alert_lines_read(d->path, l) && l->count > 0) {
        fprintf(out, "<h2>Alerts <small>what the run said of itself, the newest last</small></h2>\n"
                     "<div class=card><table class=alerts><tr><th>time<th>alert<th>where<th class=n>cost\n");
        for (int i = 0; i < l->count; i++) put_alert(out, &l->list[i]);
        fprintf(out, "</table></div>\n");
    }
    free(l);
}
