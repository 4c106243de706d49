"""cleanlab: its neighbour search and its search for label issues, on features.

Arguments: an npz of `features` and `labels`, k. Each line on stdin is `neighbours FILE` or `issues FILE`.
"""

import sys
import warnings

import numpy as np
from cleanlab.classification import CleanLearning
from cleanlab.internal.neighbor import features_to_knn
from turns import serve


def main(data: str, k: str) -> None:
    warnings.simplefilter("ignore")  # of convergence
    given = np.load(data)
    features, labels = given["features"], given["labels"]

    def work(line: str) -> None:
        what, out = line.split(" ", 1)
        if what == "neighbours":
            distances, indices = features_to_knn(features, n_neighbors=int(k)).kneighbors()
            np.savez(out, indices=indices, similarities=1 - distances)
        else:  # out-of-fold logistic regression, then confident learning: the defaults
            found = CleanLearning(seed=0).find_label_issues(features, labels)
            np.savez(out, issue=found["is_label_issue"], quality=found["label_quality"])

    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
