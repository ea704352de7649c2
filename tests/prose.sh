#!/usr/bin/env bash
# Looks for words and openings that the project has retired, in headers, messages and documents. Prints FILE:LINE and why; status 1
# where there is one. The words and their replacements are in format/ARCHITECTURE.md, "Glossary".
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
headers=$(git ls-files '*.hpp')
sources=$(git ls-files 'format/*.cpp' 'converters/*.cpp' 'tools/*.cpp' 'trainer/*.cpp' 'examples/*.cpp')
documents=$(git ls-files '*.md')

# refuse WHY PATTERN FILES...: no line of the files may match.
refuse() {
  local why=$1 pattern=$2
  shift 2
  local found
  found=$(grep -nE -- "$pattern" "$@" /dev/null || true)
  [ -z "$found" ] || { printf '%s\n' "$found" | sed "s|^|$why: |"; status=1; }
}

# shellcheck disable=SC2086
{
  refuse "unfinished" '\b(TODO|FIXME|XXX)\b' $headers $sources $documents
  refuse "say who the reader is: 'for callers that …'" '\bfor who\b|\bwho (cuts|writes|reads|wants|waits|calls|asks|has)\b.*\b(may|must|should)\b' $headers $documents
  refuse "begin with the subject" '^ *///? Of (a|an|the|all|every|each|what|several|whole)\b' $headers
  refuse "say 'terminated unexpectedly'" 'without a word' $headers $sources $documents
  refuse "name the folder and what happened to it" 'by which the processes' $headers $sources
  refuse "one phrase: 'Thread-safe.'" '[Ss]afe to call from any thread' $headers
  refuse "one phrase: 'Thread safety: pure functions.' or 'Thread-safe.'" '[Ss]afe from (any|several) threads?|[;,.] any thread\.|: any thread\.|\bPure[.;]' $headers
  refuse "begin with 'Returns …' or with the subject" '^ *///? (Where|Whether|Who|As|Of) ' $headers
  refuse "name the process, the caller or the user" '\b(somebody|everybody|whoever)\b' $headers $documents
  refuse "a checksum covers bytes" '\bvouch(es)?\b' $headers $documents
  refuse "say 'not supported'" '\bis not built[":]' $sources
  refuse "say 'bypasses the page cache'" '\b(go|goes|going|went) past the page cache' $headers $sources $documents
  refuse "say 'continues'" '\b(go|goes) on (with|from)\b' $headers $documents
  refuse "a name of the past" '\b(tools/lib|tools/render)\b|\b(report_view|catalog_text|own_text|folder_signs|own_process|leftover)\.hpp' $headers $sources $documents
  refuse "a row of a table is one line" '^\|.*[^| ] *$' $documents
  refuse "longer than 250 characters" '^[^|].{250,}$' $documents
}
words=$(wc -w <README.md)
[ "$words" -le 900 ] || { echo "README.md: $words words; 900 are allowed"; status=1; }
exit $status
