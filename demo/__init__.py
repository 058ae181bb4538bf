"""The tour of `notebooks/00_tour.ipynb` without a browser: run, kept as HTML, judged, summed up."""
