// Search results quote the page they found only where a browser lets one page read another: not for pages that were opened as files.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";
