package gather

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/explain"
)

// askScheduler asks the scheduler, if it runs beside the API server, for a report on the pod. That there is none
// is no error: another scheduler may be at work.
func askScheduler(ctx context.Context, client kubernetes.Interface, f *explain.Facts) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := client.CoreV1().RESTClient().Get().AbsPath(report.SchedulingPath + string(f.Pod.UID)).DoRaw(ctx)
	scheduling := &report.Scheduling{}
	if err == nil {
		err = json.Unmarshal(answer, scheduling)
	} else {
		err = inWords(err, answer)
	}
	switch {
	case err == nil && (scheduling.Kind != report.SchedulingKind || scheduling.APIVersion != report.APIVersion):
		f.SchedulerErr = fmt.Sprintf("it reports as %s %s, but this wherry reads %s %s",
			scheduling.APIVersion, scheduling.Kind, report.APIVersion, report.SchedulingKind)
	case err == nil:
		f.Scheduling = scheduling
	case !apierrors.IsNotFound(err):
		f.SchedulerErr = err.Error()
	}
}
