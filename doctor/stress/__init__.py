"""The whole sweep: every attention that is installed, over a covering array of cases, judged against float64 truth."""
