package pods

import batchv1 "k8s.io/api/batch/v1"

// JobLabels returns the labels of the pods of a job whose selector is generated: its name and UID,
// with a prefix and, as in old versions, without.
func JobLabels(j *batchv1.Job) map[string]string {
	return map[string]string{
		"job-name":                 j.Name,
		"controller-uid":           string(j.UID),
		batchv1.JobNameLabel:       j.Name,
		batchv1.ControllerUidLabel: string(j.UID),
	}
}
