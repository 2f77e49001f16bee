class Shown: pass
export_html = from_runs = None
