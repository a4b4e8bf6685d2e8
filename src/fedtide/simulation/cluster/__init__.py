"""One run on the workers of a Ray cluster, which train the chunks of every cohort."""
