#!/usr/bin/env python3
"""check_openmetrics.py FILE: reads FILE with prometheus_client's parser of OpenMetrics (PyPI) and counts what is in it."""
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = list(text_string_to_metric_families(open(sys.argv[1], encoding='utf-8').read()))
samples = sum(len(f.samples) for f in families)
print(f'{len(families)} families, {samples} samples')
sys.exit(0 if samples else 1)
